"""What a kernel's machine code costs, counted in the text that nvdisasm makes of it.

A kernel that reads logits spends its time in one loop: the innermost one with the most 16-byte loads. Its cost is that
of the cheapest way round it that does all of those loads, because what the branches guard (the target's own vector, a
new maximum, an odd end) is rare. On a GPU that issues 128 instructions a cycle on each multiprocessor, this number
alone says whether instructions or memory are the limit.
"""

import re
from dataclasses import dataclass, field

#: Bytes of a logit.
ELEMENT_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
#: Kernels with a main loop over logits, and what their 16-byte loads read beside them, as (reads of 16 bytes) per (16
#: bytes of logits).
READS_PER_LOGIT = {"loss": 1, "score": 1, "smooth": 1, "backward": 1, "probability": 2}

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")
REGISTERS = re.compile(r"EIATTR_REGCOUNT.*?index@\((\w+)\)\s*/\*[0-9a-f]+\*/\s*\.word\s+0x([0-9a-f]+)", re.S)
REGISTER = re.compile(r"\bR(\d+)\b")
GUARD = re.compile(r"^@!?U?P\w+\s+")
WIDE_LOAD = re.compile(r"^LDG(?!STS|DEPBAR)\S*\.(128|256)\b\S*\s+R(\d+)")
WIDE_ASYNC = re.compile(r"^LDGSTS\S*\.128\b")
WAIT_ASYNC = re.compile(r"^DEPBAR\.LE\s+SB0,\s*0x([0-9a-f]+)")


@dataclass
class Block:
    """Instructions that run one after the other, and the blocks that may follow."""

    code: list[str] = field(default_factory=list)
    next: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Cost:
    """What one kernel costs; ``None``: it has no loop over logits."""

    registers: int
    spills: int  # instructions that reach for local memory
    instructions_per_logit: float | None
    loads_in_flight: int | None  # 16-byte loads under way before the first of them is used
    fences_gpu: int
    fences_system: int


def split(text: str) -> dict[str, list[tuple[str, str]]]:
    """Each kernel's code as ("label", name) and ("code", instruction)."""
    found: dict[str, list[tuple[str, str]]] = {}
    lines: list[tuple[str, str]] | None = None
    for line in text.splitlines():
        if line.startswith("\t.section"):
            lines = None
        elif line.startswith(".text.") and line.endswith(":"):
            lines = found.setdefault(line[6:-1], [])
        elif lines is not None:
            if label := LABEL.match(line):
                lines.append(("label", label[1]))
            elif instruction := INSTRUCTION.match(line):
                lines.append(("code", instruction[1]))
    return found


def bare(instruction: str) -> str:
    """Without its guard."""
    return GUARD.sub("", instruction)


def blocks_of(lines: list[tuple[str, str]]) -> list[Block]:
    """The graph of blocks; the first is the entry."""
    blocks: list[Block] = [Block()]
    at: dict[str, int] = {}
    ends: list[tuple[int, str, str]] = []  # block, operation, where to
    joins: dict[str, str] = {}  # barrier: the place where its threads meet, as last set
    for kind, text in lines:
        if kind == "label":
            if blocks[-1].code:
                blocks.append(Block())
            at[text] = len(blocks) - 1
            continue
        blocks[-1].code.append(text)
        name, _, rest = bare(text).partition(" ")
        operation = name.split(".")[0]
        to = TARGET.search(rest)
        if operation == "BSSY" and to:
            joins[rest.split(",")[0].strip()] = to[1]
        elif operation in ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "BSYNC"):
            always = bare(text) == text and "," not in rest
            where = joins.get(rest.strip(), "") if operation == "BSYNC" else to[1] if to else ""
            ends.append((len(blocks) - 1, "always" if always else "perhaps", where))
            blocks.append(Block())
    ended = {block: (how, where) for block, how, where in ends}
    for number, block in enumerate(blocks):
        how, where = ended.get(number, ("", ""))
        if where in at:
            block.next.append(at[where])
        if how != "always" and number + 1 < len(blocks):
            block.next.append(number + 1)
    return blocks


def dominators(blocks: list[Block]) -> dict[int, int]:
    """The immediate dominator of every block that can be reached (Cooper, Harvey, Kennedy: A Simple, Fast Dominance
    Algorithm)."""
    order: list[int] = []
    seen = {0}
    stack = [(0, iter(blocks[0].next))]
    while stack:
        number, rest = stack[-1]
        following = next((n for n in rest if n not in seen), None)
        if following is None:
            order.append(number)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(blocks[following].next)))
    order.reverse()
    place = {number: k for k, number in enumerate(order)}
    before: dict[int, list[int]] = {number: [] for number in order}
    for number in order:
        for following in blocks[number].next:
            before[following].append(number)
    immediate = {0: 0}
    changed = True
    while changed:
        changed = False
        for number in order[1:]:
            known = [p for p in before[number] if p in immediate]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    if place[best] > place[other]:
                        best = immediate[best]
                    else:
                        other = immediate[other]
            if immediate.get(number) != best:
                immediate[number] = best
                changed = True
    return immediate


def loops_of(blocks: list[Block]) -> list[tuple[int, set[int]]]:
    """Natural loops, one for each way back: header and blocks."""
    immediate = dominators(blocks)

    def dominates(header: int, number: int) -> bool:
        while number != header and number != immediate[number]:
            number = immediate[number]
        return number == header

    before: dict[int, list[int]] = {}
    for number in immediate:
        for following in blocks[number].next:
            before.setdefault(following, []).append(number)
    loops: list[tuple[int, set[int]]] = []
    for number in immediate:
        for header in blocks[number].next:
            if not dominates(header, number):
                continue
            body, work = {header}, [number]
            while work:
                inside = work.pop()
                if inside not in body:
                    body.add(inside)
                    work.extend(before.get(inside, []))
            loops.append((header, body))
    return loops


def wide_loads(code: list[str]) -> int:
    """Loads of 16 bytes (one of 32 counts twice)."""
    found = 0
    for text in code:
        load = WIDE_LOAD.match(bare(text))
        found += int(load[1]) // 128 if load else bool(WIDE_ASYNC.match(bare(text)))
    return found


def way_round(blocks: list[Block], header: int, body: set[int]) -> list[str]:
    """The instructions of the cheapest way from the header back to it that does the most wide loads."""
    best: dict[int, tuple[int, int, list[int]]] = {}
    open_now: set[int] = set()

    def walk(number: int) -> tuple[int, int, list[int]] | None:
        """Most loads, then fewest instructions (negative), then the way, from here to the header."""
        if number in best:
            return best[number]
        if number in open_now:
            return None  # an inner loop's way back
        open_now.add(number)
        found: tuple[int, int, list[int]] | None = None
        for following in blocks[number].next:
            rest = (0, 0, []) if following == header else walk(following) if following in body else None
            if rest is not None and (found is None or rest[:2] > found[:2]):
                found = rest
        open_now.discard(number)
        if found is None:
            return None
        code = blocks[number].code
        best[number] = (found[0] + wide_loads(code), found[1] - len(code), [number, *found[2]])
        return best[number]

    way = walk(header)
    return [text for number in (way[2] if way else []) for text in blocks[number].code]


def in_flight(way: list[str]) -> int:
    """The most wide loads that are under way at once, going round and round."""
    ring = sum(bool(WIDE_ASYNC.match(bare(text))) for text in way)
    if ring:
        left = [int(wait[1], 16) for text in way if (wait := WAIT_ASYNC.match(bare(text)))]
        return ring * (1 + min(left, default=0))
    under_way: dict[int, tuple[range, int]] = {}
    most = 0
    for text in [*way, *way]:
        mentioned = {int(number) for number in REGISTER.findall(text)}
        for first in [first for first, (registers, _) in under_way.items() if mentioned.intersection(registers)]:
            del under_way[first]
        if load := WIDE_LOAD.match(bare(text)):
            width = int(load[1]) // 128
            under_way[int(load[2])] = (range(int(load[2]), int(load[2]) + 4 * width), width)
            most = max(most, sum(width for _, width in under_way.values()))
    return most


def main_loop(lines: list[tuple[str, str]]) -> list[str]:
    """The way round the loop in which a kernel spends its time; empty without one."""
    blocks = blocks_of(lines)
    wide = [(header, body) for header, body in loops_of(blocks) if any(wide_loads(blocks[number].code) for number in body)]
    innermost = [(header, body) for header, body in wide if not any(other < body for _, other in wide)]
    ways = [way_round(blocks, header, body) for header, body in innermost]
    return max(ways, key=lambda way: (wide_loads(way), -len(way)), default=[])


def cost(kernel: str, lines: list[tuple[str, str]], registers: int) -> Cost:
    """What the kernel of that name (without ``lossfeed_``) costs."""
    code = [bare(text) for kind, text in lines if kind == "code"]
    per_logit = flying = None
    family, element = kernel.split("_")[0], kernel.split("_")[-1]
    if family in READS_PER_LOGIT:
        way = main_loop(lines)
        loads = wide_loads(way)
        if loads:
            logits = loads * 16 / ELEMENT_BYTES[element] / READS_PER_LOGIT[family]
            per_logit, flying = round(len(way) / logits, 2), in_flight(way)
    return Cost(
        registers=registers,
        spills=sum(text.startswith(("LDL", "STL")) for text in code),
        instructions_per_logit=per_logit,
        loads_in_flight=flying,
        fences_gpu=sum(text.startswith("MEMBAR") and ".GPU" in text for text in code),
        fences_system=sum(text.startswith("MEMBAR") and ".SYS" in text for text in code),
    )


def costs(text: str) -> dict[str, Cost]:
    """Every kernel of a disassembly."""
    registers = {name: int(count, 16) for name, count in REGISTERS.findall(text)}
    found = {}
    for name, lines in split(text).items():
        kernel = name.removeprefix("lossfeed_")
        found[kernel] = cost(kernel, lines, registers[name])
    return found
