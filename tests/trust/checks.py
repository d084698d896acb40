"""What `make trust` checks: the faults of the table in docs/reliability.md, each with a command and how
often it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

PYTEST = "{python} -m pytest -n 0 -p no:cacheprovider --timeout 0"


@dataclass(frozen=True)
class Check:
    """A fault, and the command that shows what it does; exit code 0 is a pass.

    row: its number in the table, or "" for what has none. quick, full: how often; 0 leaves it out. {n} in the
    command is that number; a command without it runs so often. {python} is the interpreter. result: a pattern
    whose last match is the result.
    """

    name: str
    row: str
    fault: str
    target: str
    command: str
    quick: int = 1
    full: int = 1
    result: str = r"\d+ passed.*?(?= in )"


def _tests(*names: str, mark: str = "not extras") -> str:
    return f"{PYTEST} -m '{mark}' " + " ".join(names)


# Tests in Rust run with `--workspace`, as in `make test`: with `-p` cargo would compile the crates again.
RAN = r"test result: (?!ok\. 0 passed).*"  # of the crates that have tests of that name

CHECKS = (
    Check(
        "chat-screen",
        "1",
        "kill -9 of the whole chat on a terminal while an answer streams",
        "no question, answer or record lost or torn; at most 250 ms or 64 tokens of the end",
        "{python} tests/support/app_crashes.py {n}",
        3,
        1000,
        r"\d+ kills.*?: (.*)",
    ),
    Check(
        "chat-session",
        "1",
        "kill -9 of a session without a screen, answers of any speed and length",
        "as above",
        "{python} tests/support/crashes.py run {n}",
        20,
        1000,
        r"\d+ kills.*?: (.*)",
    ),
    Check(
        "chat-kv",
        "1",
        "kill -9 while keys and values of a chat are written",
        "the next start reads whole ones or none",
        "{python} tests/support/kv_crashes.py run {n}",
        3,
        1000,
        r"\d+ kills.*?: (.*)",
    ),
    Check(
        "store-operations",
        "2",
        "kill -9 during migration, VACUUM, deletion and copy of the database",
        "the old state or the new one; every copy opens",
        "{python} tests/trust/store_faults.py operations {n}",
        5,
        200,
        r"operations \d+.*?: (.*)",
    ),
    Check(
        "power-loss",
        "3",
        "power loss: writes since the last fsync dropped, at cut points of a recorded session",
        "the database is sound; what was acknowledged is there",
        "{python} tests/trust/store_faults.py power {n}",
        60,
        2000,
        r"power \d+.*?: (.*)",
    ),
    Check(
        "store-shared",
        "4",
        "four programs write one database",
        "no error, nothing lost",
        "{python} tests/trust/store_faults.py shared {n}",
        400,
        100_000,
        r"shared \d+.*?: (.*)",
    ),
    Check(
        "store-damage",
        "5",
        "a damaged database: flipped bytes, cut at a page, empty, another file, a newer version",
        "it opens or says why; the original is kept; undamaged chats are saved",
        "{python} tests/trust/store_faults.py damage {n}",
        30,
        1000,
        r"damage \d+.*?: (.*)",
    ),
    Check(
        "batch-kill",
        "6",
        "kill -9 of a batch, then --resume",
        "nothing lost, doubled or different",
        "{python} tests/support/batch_faults.py kill {n}",
        10,
        1000,
        r"kill \d+.*?: (.*)",
    ),
    Check(
        "batch-full",
        "7",
        "a full disk at any byte of journal and output (RLIMIT_FSIZE)",
        "exit 74 with a hint, nothing acknowledged lost, --resume completes",
        "{python} tests/support/batch_faults.py full {n}",
        5,
        200,
        r"full \d+.*?: (.*)",
    ),
    Check(
        "write-faults",
        "7",
        "the k-th write of batch, database and packs fails: ENOSPC, EIO, EINTR, half of it, half and the end",
        "a named error; files are whole; nothing acknowledged lost; --resume completes",
        "{python} tests/trust/write_faults.py {n}",
        5,
        400,
        r"writes \d+.*?: (.*)",
    ),
    Check(
        "batch-signal",
        "8",
        "SIGTERM, SIGHUP and SIGINT once in a batch",
        "exit 143, 129 or 130; resumable",
        "{python} tests/support/batch_faults.py signal {n}",
        2,
        200,
        r"signal \d+.*?: (.*)",
    ),
    Check(
        "stop-commands",
        "9",
        "SIGINT, SIGTERM, SIGHUP at random moments of each command",
        "ends within 300 ms",
        "{python} tests/bench/stops.py {n}",
        0,
        100,
        r"\d+ stops: .*",
    ),
    Check(
        "second-signal",
        "9",
        "Ctrl-C twice; the terminal after every end",
        "ends at once, the terminal is restored",
        _tests(
            "tests/cli/test_cli.py", "tests/tui/test_terminal.py", "-k 'signal or restore or killed or quit'"
        ),
        full=10,
    ),
    Check(
        "streams",
        "10",
        "`| head -1`, closed stdin, stdout and stderr, /dev/full",
        "no traceback; exit 0, 141 or 74",
        _tests(
            "tests/cli/test_cli.py", "tests/batch/test_batch.py", "-k 'full_disk or closed or reader_that'"
        ),
        full=15,
    ),
    Check(
        "hostile",
        "11",
        "files made to harm: models, tokenizers, templates, GGUF, batches, journals, chats; F1 to F22",
        "no exit 70, traceback, panic, signal or hang; the outcome and the words that each should have",
        "{python} tests/trust/hostile.py",
        result=r"\d+ cases.*",
    ),
    Check(
        "batch-lines",
        "12",
        "bad lines, prompts that are too long, limits of time and tokens per row",
        "an error record each; the other rows as if alone",
        _tests("tests/batch/test_batch_lines.py", "tests/batch/test_batch.py"),
    ),
    Check(
        "soak-batch",
        "13",
        "growth: a batch of many prompts",
        "at most 1 KB a prompt after 500; descriptors and threads flat",
        "{python} tests/trust/soak.py batch {n}",
        3000,
        10_000,
        r"soak batch \d+: (.*)",
    ),
    Check(
        "soak-chat",
        "13",
        "growth: chats of ten questions, scripted, minutes",
        "what was left holds at most 1 KB a question after 500; descriptors, threads and WAL flat",
        "{python} tests/trust/soak.py chat {n}",
        1,
        60,
        r"soak chat \d+: (.*)",
    ),
    Check(
        "allocation",
        "14",
        "the k-th allocation fails while a model is loaded and computes",
        "loading: an error or a result; computing: also an abort, which is named",
        "cargo test -q --workspace --test alloc_faults -- --nocapture",
        result=r"\d+ allocations of .*",
    ),
    Check(
        "memory",
        "15",
        "less memory than the model needs",
        "a named error before loading",
        _tests("tests/engine/test_memory.py"),
        full=4,
    ),
    Check(
        "model-files",
        "16",
        "the model is truncated, replaced or removed while it computes",
        "exit 74 with the name, or no effect",
        _tests("tests/engine/test_packed.py"),
        full=5,
    ),
    Check(
        "downloads",
        "17",
        "downloads dropped at random bytes, wrong hashes, full disks",
        "never a part under the final name; resumed",
        _tests("tests/models/test_hub.py", mark="trust"),
        0,
        1,
    ),
    Check(
        "fork",
        "18",
        "fork after the first use of an engine",
        "the result of the parent, or a named error; no hang",
        "{python} tests/trust/processes.py fork {n}",
        3,
        100,
        r"fork \d+: (.*)",
    ),
    Check(
        "ray",
        "19",
        "Ray: a node is killed in the middle of a shard",
        "rows are computed elsewhere, none lost or doubled",
        _tests("tests/batch/test_ray.py", "-k lost_in_mid_run", mark="extras"),
        0,
        1,
    ),
    Check(
        "pool-panics",
        "20",
        "panics in workers and callers of the thread pool",
        "raised in the caller once all parts have ended; the pool works on",
        "cargo test -q --workspace --test all pool::",
        full=20,
        result=RAN,
    ),
    Check(
        "panics",
        "20",
        "panics, errors and NaN in any part of a step of the engine",
        "an error; every sequence is as before the step; the same bits after it",
        "cargo test -q --workspace --lib engine::tests",
        full=50,
        result=RAN,
    ),
    Check(
        "callbacks",
        "20",
        "exceptions of Python callbacks; a panic of a library",
        "raised as they are; the engine works on",
        _tests(
            *("tests/engine/test_loading.py", "tests/engine/test_score_and_many.py"),
            *("tests/tokenizer/test_tokenizer.py", "-k 'exception or panic'"),
        ),
        full=30,
    ),
    Check(
        "exits",
        "21",
        "exit while the pool runs: sys.exit, os._exit, exception, daemon thread, atexit, SIGTERM",
        "ends within a second; no core dump, no fatal error",
        "{python} tests/trust/processes.py exits {n}",
        12,
        500,
        r"exits \d+: (.*)",
    ),
    Check(
        "threads-sanitizer",
        "22",
        "ThreadSanitizer: eight Python threads generate, score, cancel, fork and close; tests of the kernels",
        "no report in this code",
        "{python} tests/trust/sanitize.py thread --rounds {n}",
        0,
        40,
        r"sanitize thread: (.*)",
    ),
    Check(
        "threads",
        "22",
        "the same threads without a sanitizer, so more often",
        "each thread gets what one alone gets, to the last bit",
        "{python} tests/trust/threads.py {n}",
        20,
        1000,
        r"threads \d+: (.*)",
    ),
    Check(
        "terminals",
        "23",
        "chats and readers: clock jumps, time zones, LANG=C, TERM=dumb, 1x1 cells, storms of sizes and keys",
        "no exception",
        "{python} tests/trust/terminals.py {n}",
        4,
        200,
        r"terminals \d+: (.*)",
    ),
    Check(
        "journals",
        "24",
        "journals that are torn, damaged, of another run, complete",
        "as documented; an untouched file keeps its bytes",
        _tests(
            "tests/batch/test_batch.py",
            "tests/batch/test_batch_faults.py",
            "-k 'journal or torn or damage or resumed or flipped'",
        ),
    ),
    Check(
        "loom",
        "",
        "the thread pool in every order of its steps, within a bound (loom): gate, shares, panics",
        "no deadlock, no part lost or run twice",
        "make loom",
        0,
        1,
        r"test result.*",
    ),
    Check(
        "stop-latency",
        "",
        "cancel at random moments of decode and prefill, SmolLM2-135M's shape, all cores busy",
        "p99 of 100 ms in decode, of 250 ms in prefill",
        "{python} tests/trust/stop_latency.py {n}",
        0,
        200,
        r"stops \d+: (.*)",
    ),
    Check(
        "fuzzing",
        "",
        "coverage-guided fuzzing of all readers of strangers' files, AddressSanitizer in Rust",
        "no finding; 50 million executions",
        "{python} tests/trust/fuzz.py all --seconds {n}",
        0,
        1800,
        r"fuzz: (.*)",
    ),
    Check(
        "address-sanitizer",
        "",
        "AddressSanitizer: tests of kernels and engine; each golden case on every instruction set",
        "no report in this code",
        "{python} tests/trust/sanitize.py address",
        0,
        1,
        r"sanitize address: (.*)",
    ),
    Check(
        "kernels",
        "",
        "every packed type and instruction set, with all arithmetic checks",
        "equal bits among whole numbers, within tolerance otherwise",
        "cargo test -q -p ropechat-kernels --target-dir target/checked"
        + "".join(
            f" --config profile.test.package.ropechat-kernels.{one}"
            for one in ("opt-level=1", "debug-assertions=true", "overflow-checks=true")
        ),
        0,
        1,
        r"test result.*",
    ),
    Check(
        "every-shape",
        "",
        "products of every shape from 1x1 to 70x200, every packed type and instruction set, beside f64",
        "within 2e-6 times the root of k; fewer rows have the bits of all",
        "cargo test -q --release -p ropechat-kernels every_shape -- --ignored",
        0,
        1,
        r"test result.*",
    ),
    Check(
        "differential",
        "",
        "random models, texts, draws and tensors against transformers, tokenizers, SentencePiece, GGUF",
        "no difference without a named cause",
        "make differential DIFFERENTIAL='--size night'",
        0,
        1,
        r"differential runs: (.*)",
    ),
    Check(
        "mutants",
        "",
        "40 faults of one line in copies of the sources",
        "the tests notice each",
        "make mutants",
        0,
        1,
        r"\d+ of \d+.*",
    ),
    Check(
        "keys-and-clicks",
        "",
        "random keys, clicks and sizes from every screen of the chat, so many sequences in each of four runs",
        "no exception; no draft is lost, nothing is sent without Enter",
        "ROPECHAT_TEST_REPEATS={n} " + _tests("tests/tui/test_fuzz.py", mark="trust"),
        0,
        2500,
    ),
    Check(
        "repetitions",
        "",
        "other tests that are marked as repetitions (`trust`); random ones so many times each",
        "all pass",
        "ROPECHAT_TEST_REPEATS={n} "
        + _tests(
            "tests",
            *("--ignore=tests/batch", "--ignore=tests/models", "--ignore=tests/tui/test_crashes.py"),
            "--ignore=tests/tui/test_fuzz.py",
            mark="trust",
        ),
        0,
        1000,
    ),
    # Miri has no statvfs, maps no files, binds no threads; what it calls resident is its own memory.
    Check(
        "miri",
        "",
        "undefined behaviour in the crate of memory and limits (Miri; needs a nightly toolchain)",
        "none",
        "MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -q -p ropechat-platform --lib "
        "--target-dir target/miri -- --skip this_machine_answers --skip mapped --skip where_it_is_told "
        "--skip memory_goes_back",
        0,
        1,
        r"test result.*",
    ),
)


class Found(NamedTuple):
    """A fault. by: the check that found it, or `make test`. test: file::function that would find it now."""

    by: str
    fault: str
    test: str


FOUND = (
    Found(
        "fuzzing",
        "a tokenizer.json whose merges lack the prefix of its model made the library abort the process",
        "tests/tokenizer/test_hazards.py::test_what_is_refused",
    ),
    Found(
        "fuzzing",
        "a tokenizer.json with a step of another section was called a bug in ropechat",
        "tests/tokenizer/test_hazards.py::test_a_step_of_another_section_is_named",
    ),
    Found(
        "fuzzing",
        "a Lark grammar with control characters was called a bug in ropechat",
        "tests/engine/test_grammar.py"
        "::test_a_message_about_control_characters_is_made_in_the_process_without_files",
    ),
    Found(
        "fuzzing",
        "a malformed key sequence of the terminal ended the chat",
        "tests/tui/test_typeahead.py::test_key_sequences_whose_numbers_are_no_characters_are_ignored",
    ),
    Found(
        "keys-and-clicks",
        "alternatives of a chat that was left could fork the chat that was opened after it",
        "tests/tui/test_fork_cursor.py::test_alternatives_of_a_chat_that_was_left_fork_nothing",
    ),
    Found(
        "keys-and-clicks",
        "a click beside an answer that another version had replaced ended the chat",
        "tests/tui/test_inspector.py::test_a_click_beside_an_answer_that_another_version_replaced",
    ),
    Found(
        "keys-and-clicks",
        "the heading of a stopped answer stayed above another version",
        "tests/tui/test_branches.py::test_the_heading_of_a_version_that_was_stopped",
    ),
    Found(
        "store-damage",
        "the repair of a database whose rows are out of order never ended",
        "tests/store/test_store_trouble.py::test_rows_that_damage_put_out_of_order_are_read_once",
    ),
    Found(
        "store-damage",
        "a wrong byte in a text cost the whole message",
        "tests/store/test_store_trouble.py::test_a_wrong_byte_costs_one_character",
    ),
    Found(
        "exits",
        "the process could abort at its end while a daemon thread computed",
        "tests/engine/test_exit.py::test_python_ends_while_a_daemon_thread_computes",
    ),
    Found(
        "soak-chat",
        "answers to `a` held the chat that was left",
        "tests/tui/test_why.py::test_the_numbers_go_with_their_chat",
    ),
    Found(
        "soak-chat",
        "Textual's tables held the lines of closed panels",
        "tests/tui/test_garbage.py::test_the_lines_of_closed_widgets_go_with_the_garbage",
    ),
    Found(
        "soak-chat",
        "garbage was not collected while one answer followed another without a pause",
        "tests/tui/test_garbage.py::test_garbage_goes_without_a_pause",
    ),
    Found(
        "soak-chat",
        "a chat that was left while it answered was set aside as if it were in use",
        "tests/tui/test_garbage.py::test_what_was_left_goes_although_something_held_it_for_a_moment",
    ),
    Found(
        "differential",
        "rotary keys of Gemma 4, MiniMax M3 and yarn were read otherwise than by transformers",
        "rust/core/tests/config.rs::rotary_keys_that_transformers_does_not_read",
    ),
    Found(
        "terminals",
        "a terminal of a few columns ended the chat, when nothing was written or a list was open",
        "tests/tui/test_fuzz.py::test_any_screen_at_any_size",
    ),
    Found(
        "keys-and-clicks",
        "page down in a list on a terminal of a few columns ended the chat",
        "tests/tui/test_textual_compat.py::test_a_list_without_room_moves_by_a_page",
    ),
    Found(
        "keys-and-clicks",
        "a question above a chosen token was not drawn after the terminal had become wider",
        "tests/tui/test_fuzz.py::test_any_screen_at_any_size",
    ),
    Found(
        "terminals",
        "Enter twice, quickly, in the palette ended the chat",
        "tests/tui/test_chat.py::test_a_palette_runs_one_command_however_fast_the_keys_come",
    ),
    Found(
        "terminals",
        "a fault after ^q was printed, but the exit code was 0",
        "tests/tui/test_chat.py::test_a_fault_while_the_chat_ends_is_its_outcome",
    ),
    Found(
        "terminals",
        "a dialog that opened while the chat ended was an error",
        "tests/tui/test_chat.py::test_a_dialog_that_opens_while_the_chat_ends",
    ),
    Found(
        "terminals",
        "two new sizes while a question was sent, or the palette closed, could stop the chat for ever",
        "tests/tui/test_textual_compat.py::test_two_sizes_within_a_batch_of_updates_end",
    ),
    Found(
        "terminals",
        "a key typed into the palette while it closed could end the chat",
        "tests/tui/test_textual_compat.py::test_work_of_a_closed_dialog_may_miss_its_widgets",
    ),
    Found(
        "terminals",
        "a dialog that was closed under its help, by a new model or an early key, could end the chat later",
        "tests/tui/test_continuations.py::test_closing_under_the_help",
    ),
    Found(
        "downloads",
        "a model's download failed after an attempt that was killed, while its pip still wrote",
        "tests/models/test_package_index.py::test_pip_of_a_killed_attempt_may_still_write",
    ),
    Found(
        "terminals",
        "a traceback, where the reader of `inspect -i` was left while it computed",
        "tests/tui/test_reader.py::test_a_job_that_ends_after_the_reader",
    ),
    Found(
        "terminals",
        "the reader hung where a text was replaced, or compared, on a terminal of a few columns",
        "tests/tui/test_reader.py::test_another_text_is_shown_at_the_same_place",
    ),
    Found(
        "terminals",
        "a slash alone, and Enter, ended the chat",
        "tests/tui/test_weighing.py::test_a_slash_alone_is_no_command",
    ),
    Found(
        "make test",
        "a character of several byte tokens at the end of a thought was not in its text",
        "tests/engine/test_reasoning.py::test_a_character_before_the_end_marker_is_of_the_thought",
    ),
    Found(
        "make test",
        "a newline of a stopped thought was not in its text where another token followed",
        "tests/store/test_thoughts_kept.py::test_a_marker_that_was_begun",
    ),
    Found(
        "make test",
        "a call that came just behind the close of its engine was called cancelled, not closed",
        "tests/engine/test_score_and_many.py::test_a_call_behind_the_close_hears_of_it",
    ),
)
