{
  const LN2 = Math.log(2);
  const rows = read("rows"), words = read("words");
  const block = (name) => (byId(name) ? read(name) : []);
  const strings = block("strings"), stages = block("stages");
  const spans = [...document.querySelectorAll(".tokens > span, .prose span")];
  const panel = byId("panel");
  const counted = spans.map((span) => !/\b(template|special|given)\b/.test(span.className));
  const fixed = spans.map((span) => span.className.replace(/\bt\d\b/, "").trim());
  // The index of a token in its text, as `i` in JSON lines; a text behind a context begins at data-first.
  const places = [];
  for (const [i, span] of spans.entries()) {
    const text = span.closest("[data-first]");
    const follows = i > 0 && text && text === spans[i - 1].closest("[data-first]");
    places.push(follows ? places[i - 1] + 1 : text ? Number(text.dataset.first) : i);
  }
  const scored = (i) => rows[i].length > 1 && rows[i][1] !== null;
  const bits = (i) => (scored(i) ? Math.max(0, -rows[i][1] / LN2) : NaN);
  const margin = (i) => {
    const top = scored(i) ? rows[i][4] : [];
    return top.length > 3 ? Math.exp(top[1]) - Math.exp(top[3]) : NaN;
  };
  // Of each tint: the share of the full tint at a token, and the ends of its scale.
  const tints = {
    surprisal: [(i) => bits(i) / 12, "0 bits", "12 or more"],
    rank: [(i) => (scored(i) ? Math.log10(rows[i][2]) / 3.34 : NaN), "rank 1", "1,000 or more"],
    entropy: [(i) => (scored(i) && rows[i][3] !== null ? rows[i][3] / LN2 / 10 : NaN), "0 bits", "10 or more"],
    margin: [(i) => 1 - margin(i), "sure", "two equally likely"],
    none: [() => NaN, "", ""],
  };
  let tint = "surprisal", least = 0, at = -1, pinned = false, matches = [], match = -1;
  const found = new Set();

  const paint = (i) => {
    const share = counted[i] ? tints[tint][0](i) : NaN;
    const level = Number.isNaN(share) ? 0 : Math.min(9, Math.max(0, Math.floor(share * 10)));
    let name = fixed[i];
    if (level) name += " t" + level;
    if (least > 0 && !(counted[i] && bits(i) >= least)) name += " hidden";
    if (found.has(i)) name += " found";
    if (i === at) name += " at";
    name = name.trim();
    if (spans[i].className !== name) spans[i].className = name;
  };
  const paintAll = () => spans.forEach((_, i) => paint(i));

  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const percent = (logprob) => {
    const share = 100 * Math.exp(Math.min(0, logprob));
    return share >= 1 ? share.toFixed(1) + "%" : share >= 0.001 ? share.toPrecision(2) + "%" : "<0.001%";
  };
  const facts = (pairs) => {
    const list = make("dl", "facts");
    for (const [name, value] of pairs) {
      const item = make("div");
      item.append(make("dt", "", name), make("dd", "", value));
      list.append(item);
    }
    return list;
  };
  const candidate = (rank, id, logprob, best, chosen, apart) => {
    const item = make("li", (chosen ? "chosen" : "") + (apart ? " apart" : ""));
    const word = make("span", "word"), bar = make("span", "bar");
    bar.style.width = 100 * Math.exp(logprob - best) + "%";
    word.append(bar, words[id]);
    item.append(make("span", "rank", rank.toLocaleString("en")), word, make("span", "share", percent(logprob)));
    return item;
  };
  // What was looked up in a place, and what the stages of the sampler did there.
  const lookedUp = (values) => {
    const list = make("ol");
    strings.forEach(([text, count], k) => {
      const [first, rank, whole] = values.slice(3 * k, 3 * k + 3);
      const logprob = whole === null ? first : whole;
      if (logprob === null || logprob === undefined) return;
      const word = make("span", "word"), bar = make("span", "bar");
      bar.style.width = 100 * Math.exp(Math.min(0, logprob)) + "%";
      word.append(bar, text + (whole === null && count > 1 ? " (first of " + count + ")" : ""));
      word.title = (-logprob / LN2).toFixed(2) + " bits";
      const item = make("li");
      item.append(make("span", "rank", rank.toLocaleString("en")), word, make("span", "share", percent(logprob)));
      list.append(item);
    });
    return [make("h4", "", "Looked up"), list];
  };
  const sampled = ([left, cut, rank, share, interval, u, listed]) => {
    const grid = make("div", "stages");
    for (let k = 0; k < left.length; k += 3) {
      grid.append(make("span", "", stages[left[k]]), make("span", "", left[k + 1].toLocaleString("en")),
        make("span", "", left[k + 2] === null ? "–" : (100 * left[k + 2]).toFixed(1) + "%"));
    }
    const drawn = interval ? (u === null ? "" : "u " + u.toFixed(4) + " in ") +
      interval[0].toFixed(4) + " to " + interval[1].toFixed(4) : "";
    const outcome = cut >= 0 ? "cut by " + stages[cut] + ", rank " + rank.toLocaleString("en")
      : "can be drawn: " + percent(Math.log(share)) + (drawn ? ", " + drawn : "");
    const list = make("ol"), gone = new Map();
    let place = 0, best = 0;
    const kept = [];
    for (let k = 0; k < listed.length; k += 3) {
      if (listed[k + 1] >= 0) gone.set(listed[k + 1], (gone.get(listed[k + 1]) || 0) + 1);
      else if (listed[k + 2] > 0) kept.push([listed[k], listed[k + 2]]);
    }
    kept.sort((a, b) => b[1] - a[1]);
    for (const [id, p] of kept) {
      best = best || Math.log(p);
      list.append(candidate(++place, id, Math.log(p), best, false, false));
    }
    const parts = [make("h4", "", "Left by each stage, and their probability"), grid, make("p", "outcome", outcome)];
    if (kept.length) parts.push(make("h4", "", "At the draw"), list);
    const cuts = [...gone].map(([stage, count]) => stages[stage] + " cuts " + count).join(", ");
    if (cuts) parts.push(make("p", "", "Of the candidates above: " + cuts));
    return parts;
  };
  const show = (i) => {
    const row = rows[i];
    const parts = [make("h3", "", words[row[0]])];
    if (row[0] === -1) {
      parts.push(facts([["entropy", row[3] === null ? "–" : (row[3] / LN2).toFixed(2) + " bits"]]));
      const list = make("ol"), top = row[4];
      for (let k = 0; k < top.length; k += 2) {
        if (top[k + 1] !== null) list.append(candidate(k / 2 + 1, top[k], top[k + 1], top[1], false, false));
      }
      parts.push(list);
    } else if (!scored(i)) {
      parts.push(facts([["id", String(row[0] % 2 ** 32)]]), make("p", "", "This token has no score."));
    } else {
      const [id, logprob, rank, entropy, top] = row;
      const gap = margin(i);
      parts.push(facts([
        ["surprisal", bits(i).toFixed(2) + " bits"],
        ["probability", percent(logprob)],
        ["rank", rank.toLocaleString("en")],
        ["entropy", entropy === null ? "–" : (entropy / LN2).toFixed(2) + " bits"],
        ["margin", Number.isNaN(gap) ? "–" : (100 * gap).toFixed(1) + "%"],
        ...(spans[i].closest("[data-first]") ? [["token", "#" + places[i]]] : []),
        ["id", String(id % 2 ** 32)],
      ]));
      const list = make("ol");
      let seen = false;
      for (let k = 0; k < top.length; k += 2) {
        const chosen = top[k] === id;
        seen = seen || chosen;
        if (top[k + 1] !== null) list.append(candidate(k / 2 + 1, top[k], top[k + 1], top[1], chosen, false));
      }
      if (!seen) list.append(candidate(rank, id, logprob, top.length ? top[1] : logprob, true, top.length > 0));
      parts.push(list);
    }
    if (row[5]) parts.push(...lookedUp(row[5]));
    if (row[6]) parts.push(...sampled(row[6]));
    panel.replaceChildren(...parts, keys());
  };
  const keys = () => {
    const line = make("p", "keys");
    for (const [key, what] of [["←", ""], ["→", "next token "], ["n", ""], ["p", "next surprise "], ["/", "search "], ["Esc", "back"]]) {
      line.append(make("kbd", "", key), " " + what);
    }
    return line;
  };
  const rest = () => {
    const order = spans.map((_, i) => i).filter((i) => counted[i] && bits(i) >= 1);
    order.sort((a, b) => bits(b) - bits(a) || a - b);
    const list = make("ol");
    for (const i of order.slice(0, 10)) {
      const item = make("li"), button = make("button");
      button.addEventListener("click", () => { pinned = true; go(i, true); });
      const word = make("span", "word"), bar = make("span", "bar");
      bar.style.width = 100 * bits(i) / bits(order[0]) + "%";
      word.append(bar, words[rows[i][0]]);
      button.append(make("span", "rank", String(places[i])), word, make("span", "share", bits(i).toFixed(1) + " b"));
      item.append(button);
      list.append(item);
    }
    const most = order.length ? "Most surprising here:" : "Nothing here surprises the model by 1 bit or more.";
    panel.replaceChildren(make("p", "", "Point at a token, or move with the arrow keys. " + most), list, keys());
  };
  const go = (i, scroll) => {
    const before = at;
    at = i;
    if (before >= 0) paint(before);
    mark();
    if (i < 0) { rest(); return; }
    paint(i);
    spans[i].removeAttribute("title");  // the panel says more
    show(i);
    if (scroll) {
      const folded = spans[i].closest("details");
      if (folded) folded.open = true;
      const box = spans[i].getBoundingClientRect();
      const bar = document.querySelector(".toolbar").offsetHeight;
      if (box.top < bar + 30 || box.bottom > innerHeight - 60) spans[i].scrollIntoView({ block: "center" });
    }
  };

  // The chart of the text that the cursor is in: a column for each token, or for the mean of several.
  const charted = byId("charted"), figure = byId("chart");
  const texts = new Map();  // element of a text -> its tokens that count
  for (const i of spans.keys()) {
    if (!counted[i] || !scored(i)) continue;
    const text = spans[i].closest("article, section");
    if (!texts.has(text)) texts.set(text, []);
    texts.get(text).push(i);
  }
  const curves = {
    surprisal: bits,
    entropy: (i) => (rows[i][3] === null ? NaN : rows[i][3] / LN2),
    chosen: (i) => Math.exp(rows[i][1]),
    "runner-up": (i) => {
      const top = rows[i][4];
      for (let k = 0; k < top.length; k += 2) if (top[k] !== rows[i][0]) return Math.exp(top[k + 1]);
      return NaN;
    },
  };
  let drawn = null;  // {text, tokens, each, step, cursor}
  const LEFT = 58, WIDEST = 24, BITS = [8, 62], SHARES = [76, 116];  // of the drawing, in pixels
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const draw = (text) => {
    const tokens = texts.get(text), width = Math.max(200, figure.clientWidth), room = width - LEFT;
    const each = Math.ceil(tokens.length / room), count = Math.ceil(tokens.length / each);
    const step = Math.min(WIDEST, room / count);
    const means = (value) => Array.from({ length: count }, (_, k) => {
      const known = tokens.slice(k * each, (k + 1) * each).map(value).filter((one) => !Number.isNaN(one));
      return known.length ? known.reduce((a, b) => a + b, 0) / known.length : 0;
    });
    const [surprisal, entropy, chosen, second] = Object.values(curves).map(means);
    const most = Math.max(...surprisal, ...entropy, 1e-9);
    const path = (name, values, [top, bottom], full, closed) => {
      const points = values.map((value, k) => {
        const y = bottom - (bottom - top) * Math.min(1, value / full);
        return `V${y.toFixed(1)}H${(LEFT + (k + 1) * step).toFixed(1)}`;
      });
      const first = bottom - (bottom - top) * Math.min(1, values[0] / full);
      const begin = closed ? `M${LEFT},${bottom}` : `M${LEFT},${first.toFixed(1)}`;
      return svg("path", { class: name, d: begin + points.join("") + (closed ? `V${bottom}Z` : "") });
    };
    const label = (y, words) => {
      const made = svg("text", { x: LEFT - 6, y });
      made.textContent = words;
      return made;
    };
    const cursor = svg("rect", { class: "cursor", x: 0, y: 0, width: Math.max(2, step), height: 120, visibility: "hidden" });
    const picture = svg("svg", { viewBox: `0 0 ${width} 120`, width, height: 120, role: "img" });
    picture.setAttribute("aria-label", "Surprisal, entropy and probabilities along the text");
    picture.append(
      label(BITS[0] + 8, most.toFixed(1) + " bits"), label(BITS[1], "0"),
      label(SHARES[0] + 8, "100%"), label(SHARES[1], "0"),
      svg("rect", { class: "rest", x: LEFT, y: SHARES[0], width: count * step, height: SHARES[1] - SHARES[0] }),
      path("surprisal", surprisal, BITS, most, true), path("entropy", entropy, BITS, most, false),
      path("runner-up", chosen.map((share, k) => share + second[k]), SHARES, 1, true),
      path("chosen", chosen, SHARES, 1, true), cursor,
    );
    const legend = make("p");
    for (const name of [...Object.keys(curves), "rest"]) legend.append(make("i", name), name + " ");
    legend.append(make("span", "dim", each > 1 ? `the mean of ${each} tokens in a column` : ""));
    figure.replaceChildren(picture, legend);
    drawn = { text, tokens, each, step, cursor, picture };
  };
  const mark = () => {
    if (!charted || !charted.checked || !texts.size) return;
    const text = at >= 0 && texts.has(spans[at].closest("article, section"))
      ? spans[at].closest("article, section") : drawn ? drawn.text : texts.keys().next().value;
    if (!drawn || drawn.text !== text) draw(text);
    const place = at < 0 ? -1 : drawn.tokens.findLastIndex((i) => i <= at);
    drawn.cursor.setAttribute("visibility", place < 0 ? "hidden" : "visible");
    drawn.cursor.setAttribute("x", LEFT + Math.floor(place / drawn.each) * drawn.step);
  };
  const pointed = (event) => {
    const x = event.clientX - drawn.picture.getBoundingClientRect().left - LEFT;
    const place = Math.floor(x / drawn.step) * drawn.each;
    return x < 0 || place >= drawn.tokens.length ? undefined : drawn.tokens[place];
  };
  const turn = () => {
    document.documentElement.classList.toggle("charted", charted.checked);
    drawn = null;
    mark();
  };
  if (charted) {
    charted.addEventListener("change", turn);
    addEventListener("resize", () => { if (charted.checked) turn(); });
    figure.addEventListener("pointermove", (event) => {
      const i = drawn && pointed(event);
      if (i !== undefined && i !== null && i !== at && (!pinned || event.buttons)) go(i, true);
    });
    figure.addEventListener("click", (event) => {
      const i = drawn && pointed(event);
      if (i !== undefined && i !== null) { pinned = true; go(i, true); }
    });
  }

  const index = new Map(spans.map((span, i) => [span, i]));
  const under = (event) => index.get(event.target.closest("span"));
  document.addEventListener("pointerover", (event) => {
    const i = under(event);
    if (i !== undefined && !pinned && i !== at) go(i, false);
  });
  document.addEventListener("click", (event) => {
    const i = under(event);
    if (i === undefined || !getSelection().isCollapsed) return;
    pinned = !(pinned && at === i);
    go(i, false);
  });

  const line = (i, direction) => {
    // The token nearest to the middle of token i on the next line in this direction.
    const from = spans[i].getClientRects()[0], x = from.left + from.width / 2;
    let best = i, top = null, distance = Infinity;
    for (let k = i + direction; k >= 0 && k < spans.length; k += direction) {
      const box = spans[k].getClientRects()[0];
      if (!box || (direction > 0 ? box.top < from.bottom - 2 : box.bottom > from.top + 2)) continue;
      if (top !== null && Math.abs(box.top - top) > 4) break;
      top = box.top;
      const away = Math.abs(box.left + box.width / 2 - x);
      if (away < distance) { distance = away; best = k; }
    }
    return best;
  };
  const surprise = (direction) => {
    for (let i = at + direction; i >= 0 && i < spans.length; i += direction) {
      if (counted[i] && bits(i) >= Math.max(least, 6)) return i;
    }
    return at;
  };
  const search = byId("search"), count = byId("count");
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !spans.length) return;
    if (event.target === search) {
      if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); }
      if (event.key === "Escape") { search.value = ""; find(); search.blur(); }
      return;
    }
    if (event.target.tagName === "INPUT" && event.target !== charted) return;
    let i = at;
    if (event.key === "ArrowRight") i = Math.min(spans.length - 1, at + 1);
    else if (event.key === "ArrowLeft") i = Math.max(0, at - 1);
    else if (event.key === "ArrowDown" && pinned && at >= 0) i = line(at, 1);
    else if (event.key === "ArrowUp" && pinned && at >= 0) i = line(at, -1);
    else if (event.key === "n") i = surprise(1);
    else if (event.key === "p") i = surprise(-1);
    else if (event.key === "/") { event.preventDefault(); search.focus(); return; }
    else if (event.key === "Escape") { pinned = false; go(-1, false); return; }
    else return;
    event.preventDefault();
    pinned = true;
    if (i !== at) go(i, true);
  });

  for (const input of document.querySelectorAll('input[name="tint"]')) {
    input.addEventListener("change", () => { tint = input.value; scale(); paintAll(); });
  }
  const scale = () => {
    byId("least-tint").textContent = tints[tint][1];
    byId("full-tint").textContent = tints[tint][2];
    document.documentElement.classList.toggle("untinted", tint === "none");
  };
  for (const input of document.querySelectorAll('input[name="text"]')) {
    input.addEventListener("change", () => document.documentElement.classList.toggle("source", input.value === "source"));
  }
  const slider = byId("least");
  slider.addEventListener("input", () => {
    least = Number(slider.value);
    byId("least-shown").textContent = least + (least === 1 ? " bit" : " bits");
    paintAll();
  });

  let starts = null, all = "";
  const find = () => {
    if (starts === null) {
      starts = [];
      for (const span of spans) { starts.push(all.length); all += span.textContent.toLowerCase(); }
    }
    const wanted = search.value.toLowerCase(), before = [...found];
    found.clear();
    matches = [];
    match = -1;
    let i = 0;
    for (let place = wanted ? all.indexOf(wanted) : -1; place >= 0; place = all.indexOf(wanted, place + 1)) {
      while (i + 1 < starts.length && starts[i + 1] <= place) i++;
      matches.push(i);
      for (let k = i; k < starts.length && starts[k] < place + wanted.length; k++) found.add(k);
    }
    count.textContent = wanted ? (matches.length ? matches.length.toLocaleString("en") + " found" : "not found") : "";
    for (const k of new Set([...before, ...found])) paint(k);
  };
  const step = (direction) => {
    if (!matches.length) return;
    match = (match + direction + matches.length + (match < 0 && direction < 0 ? 1 : 0)) % matches.length;
    count.textContent = `${match + 1} of ${matches.length.toLocaleString("en")}`;
    pinned = true;
    go(matches[match], true);
  };
  search.addEventListener("input", find);
  scale();
  rest();
  if (charted && charted.checked) turn();
  for (const input of document.querySelectorAll('input[name="tint"]')) if (input.checked) tint = input.value;
  if (tint !== "surprisal") { scale(); paintAll(); }
  document.documentElement.classList.add("ready");
}
