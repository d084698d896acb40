"""What the innermost loops of the product kernels hold, read from the disassembly of the built module.

    python tests/bench/loops.py [--isa avx2] [--kernel matmul_q8_0] [--module FILE] [--listing]

Needs objdump (binutils). One line per innermost loop: all instructions, products (multiply-adds and dot
products), other vector instructions, scalar instructions (counters, addresses), accesses to the stack,
prefetches, and instructions per product. A kernel has one loop per number of rows in a tile. Loops without a
product are left out. --listing prints the loops themselves.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

SYMBOL = re.compile(r"^[0-9a-f]+ <(?:<?ropechat_core::kernel::)?arch::(\w+)::(?:(\w+)::)?(\w+).*>:$")
INSTRUCTION = re.compile(r"^\s+([0-9a-f]+):\s+(?:\{vex\} )?(\S+)\s*(.*)$")
TABLES = {"avx2.VNNI": "avx-vnni", "avx512.VNNI": "avx512-vnni", "avx512.BF16": "avx512-bf16"}
PRODUCT = re.compile(r"^(v(pdpb|pmadd|dpbf16|fn?m(add|sub))|tdp|vmulps)")


def functions(module: str) -> Iterator[tuple[str, str, list[tuple[int, str, str]]]]:
    """Yield instruction set, name and instructions (address, operation, operands) of each kernel function."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", "--demangle", module]
    found: tuple[str, str] | None = None
    body: list[tuple[int, str, str]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found and (match := INSTRUCTION.match(line)):
                body.append((int(match[1], 16), match[2], match[3]))
            elif line.rstrip().endswith(">:"):
                if found:
                    yield *found, body
                line = line.replace("ropechat_core::kernel::arch::", "arch::")
                match = SYMBOL.match(line.strip())
                found, body = (
                    ((TABLES.get(f"{match[1]}.{match[2]}", match[1]), match[3]) if match else None),
                    [],
                )
    if found:
        yield *found, body


def innermost(body: list[tuple[int, str, str]]) -> Iterator[list[tuple[int, str, str]]]:
    """Yield the loops (from the target of a backward jump to the jump) that hold no other loop."""
    index = {address: i for i, (address, _, _) in enumerate(body)}
    loops = []
    for end, (_, operation, operands) in enumerate(body):
        target = operands.split()[0] if operation.startswith("j") and operands else ""
        start = index.get(int(target, 16)) if re.fullmatch(r"[0-9a-f]+", target) else None
        if start is not None and start <= end:
            loops.append((start, end))
    for start, end in loops:
        if not any((s, e) != (start, end) and start <= s and e <= end for s, e in loops):
            yield body[start : end + 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--module")
    parser.add_argument("--isa", default="")
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--listing", action="store_true")
    arguments = parser.parse_args()
    if not arguments.module:
        spec = find_spec("ropechat.engine._core")
        if spec is None or spec.origin is None:
            parser.error("ropechat is not installed here; name its compiled module with --module")
        arguments.module = spec.origin
    titles = ("all", "products", "vector", "scalar", "stack", "prefetch", "all/product")
    print(f"{'isa':12} {'kernel':16}" + "".join(f"{title:>12}" for title in titles))
    for isa, name, body in functions(arguments.module):
        if not (isa.startswith(arguments.isa) and arguments.kernel in name):
            continue
        for loop in innermost(body):
            products = sum(bool(PRODUCT.match(operation)) for _, operation, _ in loop)
            if not products:
                continue
            prefetches = sum(operation.startswith("prefetch") for _, operation, _ in loop)
            vector = sum(operation[0] in "vt" for _, operation, _ in loop) - products
            stack = sum("(%rsp" in operands or "(%rbp" in operands for _, _, operands in loop)
            scalar = len(loop) - products - vector - prefetches
            counts = (len(loop), products, vector, scalar, stack, prefetches)
            ratio = f"{len(loop) / products:12.2f}"
            print(f"{isa:12} {name:16}" + "".join(f"{count:12}" for count in counts) + ratio)
            if arguments.listing:
                print("".join(f"    {operation:14} {operands}\n" for _, operation, operands in loop))


if __name__ == "__main__":
    main()
