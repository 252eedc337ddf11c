"""Machine instructions (SASS) and the loops they form.

Loops are the natural loops of the control-flow graph: a branch whose target dominates it closes one, and the loop is
all that reaches the branch without passing the target (Aho, Sethi, Ullman: Compilers, 10.4). Comparing addresses alone
would not do: the assembler puts the slow path of a wait behind the end of the kernel, and the jump back from there is
no loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_JUMPS = ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "CALL", "WARPSYNC")
_ENDS = ("EXIT", "RET", "KILL", "BRX", "BRXU", "JMX", "JMXU")
_FUSED = re.compile(r"^(\w*MMA|[FHD]FMA2?)$")
_WEIGHT = 8
"""A loop inside another is taken to run this many times for each turn of the outer one."""


@dataclass(frozen=True)
class Instruction:
    """One machine instruction.

    Attributes:
        offset: bytes from the start of the kernel.
        predicate: ``"@P0"``, ``"@!UP1"``, or empty.
        opcode: with its modifiers: ``"LDG.E.128"``.
        operands: as written, destination first.
        text: the whole of it: ``"@P0 LDG.E R2, desc[UR4][R4.64]"``.
        targets: offsets it may jump to; empty for what does not jump.
    """

    offset: int
    predicate: str
    opcode: str
    operands: tuple[str, ...]
    text: str
    targets: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The opcode without modifiers: ``"LDG"``."""
        return self.opcode.partition(".")[0]

    @property
    def jumps(self) -> bool:
        """Whether it is of a kind that jumps (``BSSY`` names an address, but only for later)."""
        return self.name in _JUMPS

    @property
    def falls_through(self) -> bool:
        """Whether the next instruction may follow."""
        if self.predicate:
            return True
        if self.name in ("BRA", "JMP"):  # "BRA P1, `(.L_x_3)" and "BRA.U !UP0, ..." depend on more than the predicate
            return len(self.operands) > 1
        return self.name not in _ENDS

    @property
    def multiplies(self) -> bool:
        """Whether it is a fused multiply-add, of tensor cores or of the ordinary pipes: a GEMM's own work."""
        return bool(_FUSED.match(self.name))


@dataclass(frozen=True)
class Loop:
    """A natural loop.

    Attributes:
        instructions: all of its body, inner loops included, by offset.
        depth: 1 for an outermost loop.
        own: its instructions that belong to no inner loop.
    """

    instructions: tuple[Instruction, ...]
    depth: int
    own: tuple[Instruction, ...]

    @property
    def weight(self) -> tuple[int, int]:
        """For ranking by heat: multiply-adds, then instructions, each by how often its depth makes it run."""
        times = _WEIGHT**self.depth
        return sum(i.multiplies for i in self.own) * times, len(self.own) * times


def find_loops(instructions: Sequence[Instruction]) -> tuple[Loop, ...]:
    """All natural loops, by the offset they start at, outer ones first; those with one header are one loop.

    What the entry never reaches has none: the jump to itself behind a kernel's end is padding.
    """
    if not instructions:
        return ()
    successors = _successors(instructions)
    order, predecessors = _reached(successors)
    dominator = _dominators(order, predecessors)
    bodies: dict[int, set[int]] = {}
    for node in order:
        for target in successors[node]:
            if _dominates(dominator, target, node):
                bodies.setdefault(target, {target}).update(_body(target, node, predecessors))
    loops = []
    for head, body in bodies.items():
        inner = [b for other, b in bodies.items() if other != head and other in body and b < body]
        nested = set[int]().union(*inner)
        loops.append(
            Loop(
                instructions=tuple(instructions[i] for i in sorted(body)),
                depth=sum(1 for b in bodies.values() if b >= body),
                own=tuple(instructions[i] for i in sorted(body - nested)),
            )
        )
    return tuple(sorted(loops, key=lambda loop: (loop.instructions[0].offset, loop.depth)))


def hottest(loops: Sequence[Loop]) -> Loop | None:
    """The loop that most of the time is spent in, as far as code alone can tell; None where there is none.

    It is the one with most multiply-adds outside its inner loops (a wait inside the main loop of a GEMM is the deeper
    loop, but not where the work is), counted :data:`_WEIGHT` times for each level of nesting.
    """
    return max(loops, key=lambda loop: loop.weight, default=None)


def _successors(instructions: Sequence[Instruction]) -> list[list[int]]:
    index = {instruction.offset: i for i, instruction in enumerate(instructions)}
    out = []
    for i, instruction in enumerate(instructions):
        following = [index[t] for t in instruction.targets if instruction.jumps and t in index]
        if instruction.falls_through and i + 1 < len(instructions):
            following.append(i + 1)
        out.append(following)
    return out


def _reached(successors: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, list[int]]]:
    """What the entry reaches, in reverse postorder, and the predecessors of each within that."""
    seen, postorder = {0}, list[int]()
    stack = [(0, iter(successors[0]))]
    while stack:
        node, remaining = stack[-1]
        following = next((n for n in remaining if n not in seen), None)
        if following is None:
            stack.pop()
            postorder.append(node)
        else:
            seen.add(following)
            stack.append((following, iter(successors[following])))
    predecessors: dict[int, list[int]] = {node: [] for node in seen}
    for node in seen:
        for following in successors[node]:
            predecessors[following].append(node)
    return postorder[::-1], predecessors


def _dominators(order: Sequence[int], predecessors: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The immediate dominator of each node (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm, 2001)."""
    rank = {node: i for i, node in enumerate(order)}
    dominator = {order[0]: order[0]}
    changed = True
    while changed:
        changed = False
        for node in order[1:]:
            known = [p for p in predecessors[node] if p in dominator]
            best = known[0]
            for other in known[1:]:
                while best != other:
                    if rank[best] > rank[other]:
                        best = dominator[best]
                    else:
                        other = dominator[other]
            if dominator.get(node) != best:
                dominator[node] = best
                changed = True
    return dominator


def _dominates(dominator: Mapping[int, int], above: int, node: int) -> bool:
    while node != above:
        if dominator[node] == node:
            return False
        node = dominator[node]
    return True


def _body(head: int, tail: int, predecessors: Mapping[int, Sequence[int]]) -> set[int]:
    """Everything that reaches ``tail`` without passing ``head``, both included."""
    body, stack = {head, tail}, [tail]
    while stack:
        node = stack.pop()
        if node == head:
            continue
        for before in predecessors[node]:
            if before not in body:
                body.add(before)
                stack.append(before)
    return body
