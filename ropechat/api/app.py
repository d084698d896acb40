"""The server as an ASGI application: who may ask, which path does what, and how answers are sent."""

import asyncio
import contextlib
import hmac
import os
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ropechat.api.answering import Answers, Call, ClientGoneError
from ropechat.api.errors import ApiError, error_of, refuse
from ropechat.api.exchange import Exchange, Message, Receive, Send, SlowClientError
from ropechat.api.metrics import Metrics
from ropechat.api.requests import check_model, read_ask, switch
from ropechat.api.responses import Responses, to_json
from ropechat.api.spec import ApiSpec
from ropechat.batch.line import CHAT, COMPLETIONS, completion_prompt, parse_line, parse_request
from ropechat.conversation import Message as ChatMessage

if TYPE_CHECKING:
    from ropechat.api.requests import Ask
    from ropechat.engine.engine import Engine
    from ropechat.engine.scheduler import Completion

_OPEN = "/health"
"""The path that is answered without a key."""
_EMBEDDINGS = "/v1/embeddings"
Handler = Callable[[Exchange], Awaitable[None]]


class Api:
    """Answers HTTP requests with an engine. log: called with a line about each request, without its texts."""

    def __init__(
        self, engine: "Engine", spec: ApiSpec | None = None, log: Callable[[str], None] = lambda line: None
    ) -> None:
        self._engine, self._spec, self._log = engine, spec or ApiSpec(), log
        self.names = tuple(dict.fromkeys((engine.name, *self._spec.aliases)))
        self.metrics = Metrics()
        self._answers: Answers | None = None
        self._created = int(time.time())
        self._fingerprint = f"{engine.facts['dtype']}-{engine.facts['isa']}"
        self._asked = 0
        self._routes: dict[str, tuple[str, Handler]] = {
            CHAT: ("POST", self._generate),
            COMPLETIONS: ("POST", self._generate),
            "/v1/models": ("GET", self._list_models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/tokenizer_info": ("GET", self._tell_tokenizer),
            _OPEN: ("GET", self._tell_health),
            "/metrics": ("GET", self._tell_metrics),
        }

    def close(self) -> None:
        """Cancel all requests, and end the engine's thread."""
        if self._answers is not None:
            self._answers.close()

    @property
    def answers(self) -> Answers:
        """What computes; begun with the first request, in its event loop."""
        if self._answers is None:
            self._answers = Answers(self._engine, self._spec, self.metrics)
        return self._answers

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request of an ASGI server. Never raises an Exception."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._spec.limits)
        begun, self.metrics.in_progress = time.monotonic(), self.metrics.in_progress + 1
        try:
            await self._answer(exchange)
        except ClientGoneError:
            self.metrics.disconnects += 1
            exchange.note += ", client gone"
        except SlowClientError:
            self.metrics.disconnects += 1
            exchange.note += ", client takes nothing"
        except Exception as error:
            failed = error_of(error)
            if failed.status == 500 and os.environ.get("ROPECHAT_DEBUG"):
                traceback.print_exc()
            exchange.note += f", {failed.code or 'refused'}"
            with contextlib.suppress(SlowClientError):
                await self._fail(exchange, failed)
        finally:
            self.metrics.in_progress -= 1
            path = exchange.path if exchange.path in self._routes else "other"
            status = exchange.status or 499  # as nginx: closed by the client
            self.metrics.requests[path, status] += 1
            took = time.monotonic() - begun
            if path != _OPEN:
                self._log(f"{exchange.method} {path} {status}, {took:.3f} s{exchange.note}")

    @staticmethod
    async def _fail(exchange: Exchange, error: ApiError) -> None:
        if exchange.status is None:
            await exchange.reply(error.status, error.body, error.headers)
        else:
            await exchange.event(to_json(error.body))
            await exchange.close_events()

    async def _answer(self, exchange: Exchange) -> None:
        """Find who answers a path, after it is clear that the client may ask."""
        self._check_client(exchange)
        if exchange.method == "OPTIONS":
            await exchange.reply_bytes(204, b"", "text/plain")
            return
        path = exchange.path
        if path.startswith("/v1/models/"):
            await self._show_model(exchange, path.removeprefix("/v1/models/"))
            return
        if path == _EMBEDDINGS:
            raise ApiError(
                400, f"{path}: not offered; this server answers and scores texts", code="unsupported"
            )
        if path not in self._routes:
            offered = ", ".join(self._routes)
            raise ApiError(404, f"{path:.80}: not offered; there are {offered}", code="not_found")
        method, handler = self._routes[path]
        if exchange.method != method:
            raise ApiError(
                405, f"{path}: must be {method} (got {exchange.method:.20})", headers=(("allow", method),)
            )
        await handler(exchange)

    def _check_client(self, exchange: Exchange) -> None:
        """Refuse pages of other sites, names that are not this server's (DNS rebinding), and missing keys."""
        spec, host, origin = self._spec, exchange.header("host") or "", exchange.header("origin")
        if spec.hosts is not None and host not in spec.hosts:
            raise ApiError(403, f"Host: must be {' or '.join(sorted(spec.hosts))} (got {host!r:.60})")
        if origin is not None and origin.partition("://")[2] != host:
            if origin not in spec.origins:
                raise ApiError(403, f"Origin: must be this server, or be allowed (got {origin!r:.60})")
            exchange.added = (
                ("access-control-allow-origin", origin),
                ("access-control-allow-headers", "authorization, content-type"),
                ("access-control-allow-methods", "GET, POST"),
                ("vary", "origin"),
            )
        if spec.key is None or exchange.path == _OPEN or exchange.method == "OPTIONS":
            return
        kind, _, key = (exchange.header("authorization") or "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), spec.key.encode()):
            challenge = (("www-authenticate", "Bearer"),)
            raise ApiError(
                401,
                "Authorization: must be Bearer with this server's key",
                code="invalid_api_key",
                headers=challenge,
            )

    # ---- answers

    async def _generate(self, exchange: Exchange) -> None:
        most = self._spec.limits.requests
        if self._asked >= most:
            raise ApiError(
                429,
                f"{most} requests are in progress or waiting; try again",
                code="queue_full",
                headers=(("retry-after", "1"),),
            )
        self._asked += 1
        try:
            await self._answer_ask(exchange, await self._read(exchange))
        finally:
            self._asked -= 1

    async def _read(self, exchange: Exchange) -> "Ask":
        body = await exchange.body()
        most = self._spec.limits.choices
        return await self.answers.work(lambda: read_ask(exchange.path, parse_line(body), self.names, most))

    async def _answer_ask(self, exchange: Exchange, ask: "Ask") -> None:
        call, now = Call(ask), int(time.time())
        watching = asyncio.create_task(_leave_with_client(exchange, call))
        responses = Responses(
            ask,
            self.names[0],
            self._fingerprint,
            now,
            self._engine.token_bytes,
            lambda number, completion: self.answers.more_of(call, number, completion),
        )
        try:
            await (self._stream if ask.stream else self._whole)(exchange, call, responses)
        finally:
            watching.cancel()
            self._count(call)
            exchange.note = f", {call.prompt_tokens} + {call.made_tokens} tokens"

    def _count(self, call: Call) -> None:
        metrics = self.metrics
        metrics.prompt_tokens += call.prompt_tokens
        metrics.cached_tokens += call.cached_tokens
        metrics.completion_tokens += call.made_tokens
        if call.first is not None:
            metrics.histograms["first_token_seconds"].add(call.first - call.begun)
        if not call.is_gone:
            metrics.histograms["request_seconds"].add(time.monotonic() - call.begun)

    async def _whole(self, exchange: Exchange, call: Call, responses: Responses) -> None:
        """Send the whole response when it is complete."""
        scores = await self.answers.scores(call)
        completions: dict[int, Completion] = {}
        async with contextlib.aclosing(self.answers.answers(call)) as told_of:
            async for told in told_of:
                if told.completion is not None:
                    completions[told.number] = told.completion
        ordered = [completions[number] for number in range(len(completions))]
        await exchange.reply(200, responses.whole(ordered, scores))

    async def _stream(self, exchange: Exchange, call: Call, responses: Responses) -> None:
        """Send a token's event as soon as the token is made. An error before the first one has its status."""
        scores = await self.answers.scores(call)
        samples = call.ask.samples
        completions: dict[int, Completion] = {}
        offsets: dict[int, int] = {}
        delays = self.metrics.histograms["event_seconds"]

        async def send(chunk: dict[str, Any] | None) -> None:
            if chunk is not None:
                await exchange.event(to_json(chunk))

        places = responses.has_offsets

        async with contextlib.aclosing(self.answers.answers(call)) as told_of:
            async for told in told_of:
                if exchange.status is None:
                    await exchange.open_events()
                number = told.number
                if number not in offsets:
                    part = scores[number // samples]
                    await send(responses.opening(number, part))
                    offsets[number] = responses.prompt_length(number, part)
                if told.step is not None:
                    event = responses.step(number, told.step, offsets[number])
                    if event is not None:
                        await exchange.event(event)
                    if places:
                        offsets[number] += responses.token_length(told.step)
                    delays.add(time.monotonic() - told.at)
                if told.completion is not None:
                    completions[number] = told.completion
                    await send(responses.closing(number, told.completion))
        await send(responses.last([completions[number] for number in range(len(completions))]))
        await exchange.event(b"[DONE]")
        await exchange.close_events()

    # ---- facts

    def _model(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "ropechat",
            "max_model_len": self._engine.context,
        }

    async def _list_models(self, exchange: Exchange) -> None:
        await exchange.reply(200, {"object": "list", "data": list(map(self._model, self.names))})

    async def _show_model(self, exchange: Exchange, name: str) -> None:
        if exchange.method != "GET":
            raise ApiError(
                405, f"/v1/models: must be GET (got {exchange.method:.20})", headers=(("allow", "GET"),)
            )
        check_model(name, self.names)
        await exchange.reply(200, self._model(name))

    async def _tell_health(self, exchange: Exchange) -> None:
        await exchange.reply(200, {"status": "ok"})

    async def _tell_metrics(self, exchange: Exchange) -> None:
        text = self.metrics.text(self._engine.kv_bytes)
        await exchange.reply_bytes(200, text.encode(), "text/plain; version=0.0.4; charset=utf-8")

    async def _tell_tokenizer(self, exchange: Exchange) -> None:
        """What lm-evaluation-harness asks for, in vLLM's form."""
        engine = self._engine
        template, ids = engine.prompts.template, sorted(engine.facts["eos_token_id"])
        eos = next(iter(ids), min(engine.stop_ids, default=None))
        await exchange.reply(
            200,
            {
                "eos_token": None if eos is None else engine.tokenizer.token(eos),
                "bos_token": None
                if engine.tokenizer.bos_id is None
                else engine.tokenizer.token(engine.tokenizer.bos_id),
                "chat_template": None if template is None else template.source,
            },
        )

    async def _tokenize(self, exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.reply(200, await self.answers.work(lambda: self._ids_of(parse_line(body))))

    def _ids_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The ids of a text, or of the prompt of messages, in vLLM's form."""
        check_model(fields.pop("model", None), self.names)
        adds, strings = (
            switch(fields, "add_special_tokens", default=True),
            switch(fields, "return_token_strs"),
        )
        engine = self._engine
        if "messages" in fields:
            request = parse_request(
                {"custom_id": "", "url": CHAT, "body": {"messages": fields.pop("messages")}}
            )
            parts = [part for part in request.content if isinstance(part, ChatMessage)]
            ids = engine.prompt_ids(parts)
        else:
            text = completion_prompt(fields.pop("prompt", None))
            if not isinstance(text, str):
                raise refuse("prompt: must be a string (got ids)")
            ids = engine.tokenizer.encode(text, add_special_tokens=adds)
        _refuse_rest(fields)
        more = (
            {"token_strs": [engine.token_bytes(id).decode("utf-8", "replace") for id in ids]}
            if strings
            else {}
        )
        return {"count": len(ids), "max_model_len": engine.context, "tokens": ids, **more}

    async def _detokenize(self, exchange: Exchange) -> None:
        body = await exchange.body()
        await exchange.reply(200, await self.answers.work(lambda: self._text_of(parse_line(body))))

    def _text_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        check_model(fields.pop("model", None), self.names)
        given = fields.pop("tokens", None)
        if not isinstance(given, list) or not all(type(id) is int for id in given):
            raise refuse(f"tokens: must be a list of token ids (got {given!r:.40})")
        _refuse_rest(fields)
        size = self._engine.facts["vocab_size"]
        if wrong := next((id for id in given if not 0 <= id < size), None):
            raise refuse(f"tokens: must be ids from 0 to {size - 1} (got {wrong})")
        return {"prompt": self._engine.tokenizer.decode(given, skip_special_tokens=False)}


def _refuse_rest(fields: dict[str, Any]) -> None:
    for name in fields:
        raise refuse(f"{name:.60}: unknown field; omit it")


async def _leave_with_client(exchange: Exchange, call: Call) -> None:
    """Leave a request when its client is gone."""
    await exchange.disconnected()
    call.leave()
