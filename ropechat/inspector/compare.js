{
  const rows = read("rows"), words = read("words"), worst = read("worst"), scale = read("scale");
  const spans = [...document.querySelectorAll(".tokens > span:not(.dim)")], places = [...worst].sort((a, b) => a - b);
  const panel = byId("panel"), LN2 = Math.log(2);
  const kl = (row) => (row[1] === null ? Infinity : row[1]);
  // B's bits of the token beyond A's; a logprob that is null is -infinity.
  const delta = (row) => {
    const [a, b] = [row[3][0], row[4][0]].map((logprob) => (logprob === null ? Infinity : -logprob / LN2));
    return a === b ? 0 : b - a;
  };
  const tints = {
    kl: [(row) => kl(row) / scale.kl, scale.kl.toPrecision(2) + " " + scale.unit + "s or more"],
    delta: [(row) => Math.abs(delta(row)) / 4, "4 bits or more"],
    top: [(row) => (row[3][2][0] === row[4][2][0] ? 0 : 0.9), "another one"],
  };
  let tint = "kl", at = -1, pinned = false;

  const make = (tag, name, text) => {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const paint = (i) => {
    const level = Math.min(9, Math.max(0, Math.floor(tints[tint][0](rows[i]) * 10)));
    spans[i].className = ((level ? "t" + level : "") + (i === at ? " at" : "")).trim();
  };
  const percent = (logprob) => (100 * (logprob === null ? 0 : Math.exp(logprob))).toPrecision(3) + "%";
  const number = (value, digits) => (value === null ? "∞" : value.toFixed(digits));
  const facts = (pairs) => {
    const list = make("dl", "facts");
    for (const [name, value] of pairs) {
      const item = make("div");
      item.append(make("dt", "", name), make("dd", "", value));
      list.append(item);
    }
    return list;
  };
  const side = (letter, view, id, name) => {
    const [logprob, rank, top] = view, box = make("div", name), list = make("ol");
    box.append(make("h4", "", `${letter}  ${percent(logprob)}, rank ${rank.toLocaleString("en")}`));
    for (let k = 0; k < top.length; k += 2) {
      const item = make("li", top[k] === id ? "chosen" : ""), bar = make("span", "bar");
      bar.style.width = 100 * Math.exp(top[k + 1] ?? -Infinity) + "%";
      item.append(bar, make("span", "word", words[top[k]]), make("span", "share", percent(top[k + 1])));
      list.append(item);
    }
    box.append(list);
    return box;
  };
  const show = (i) => {
    const before = at;
    at = i;
    if (before >= 0) paint(before);
    if (i < 0) {
      panel.replaceChildren(make("p", "dim", "Point at a token to see both models' candidates."), keys());
      return;
    }
    paint(i);
    const row = rows[i], change = delta(row), sides = make("div", "sides");
    sides.append(side("A", row[3], row[0], "first"), side("B", row[4], row[0], "second"));
    panel.replaceChildren(
      make("h3", "", words[row[0]]),
      facts([["place", "#" + i], ["KL", number(row[1], 4) + " " + scale.unit], ["JS", number(row[2], 4) + " " + scale.unit],
        ["B - A", (change > 0 ? "+" : "") + change.toFixed(2) + " bits"]]),
      sides, keys());
  };
  const keys = () => make("p", "keys", "← → next token · n p next of the worst places · Esc back");
  const go = (i) => {
    pinned = true;
    show(i);
    const box = spans[i].getBoundingClientRect();
    if (box.top < 90 || box.bottom > innerHeight - 60) spans[i].scrollIntoView({ block: "center" });
  };
  const index = new Map(spans.map((span, i) => [span, i]));
  const token = (target) => index.get(target.closest?.(".tokens > span"));
  document.addEventListener("pointerover", (event) => {
    const i = token(event.target);
    if (i !== undefined && !pinned && i !== at) show(i);
  });
  document.addEventListener("click", (event) => {
    const i = token(event.target);
    if (i === undefined) return;
    pinned = !(pinned && at === i);
    show(i);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    let i;
    if (event.key === "ArrowRight") i = Math.min(rows.length - 1, at + 1);
    else if (event.key === "ArrowLeft") i = Math.max(0, at - 1);
    else if (event.key === "n") i = places.find((place) => place > at);
    else if (event.key === "p") i = places.findLast((place) => place < at);
    else if (event.key === "Escape") { pinned = false; show(-1); return; }
    if (i === undefined) return;
    event.preventDefault();
    go(i);
  });
  const jump = () => { if (/^#p\d+$/.test(location.hash)) go(Number(location.hash.slice(2))); };
  addEventListener("hashchange", jump);
  for (const input of document.querySelectorAll('input[name="tint"]')) {
    input.addEventListener("change", () => {
      tint = input.value;
      byId("full").textContent = tints[tint][1];
      rows.forEach((_, i) => paint(i));
    });
  }
  for (const span of spans) span.removeAttribute("title");  // the panel says more
  show(-1);
  jump();
}
