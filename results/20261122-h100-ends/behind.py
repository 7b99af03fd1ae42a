#!/usr/bin/env python3
"""keep_behind of linear_wide.cuh: both warpgroups as state machines, every interleaving. Prints for a ring
of S stages and C chunks a tile whether one can wait for ever, with and without barriers behind the last tile."""
import sys
sys.setrecursionlimit(100000)

def program(group, tiles, chunks, last_too):
    """Operations: ('wait', stage) for data, ('free', stage), ('sync', id), ('arrive', id)."""
    ops, n, c = [], 0, 0
    def chunk(there, free_late):
        nonlocal n, c
        for s in range(3):
            touch = there or last_too
            if s == 0 and group == 1 and touch: ops.append(('sync', c % 2))
            if there: ops.append(('wait', n + s))
            if s == 1 and group == 0 and touch: ops.append(('arrive', c % 2))
            if there and s > 0 and not free_late: ops.append(('free', n + s - 1))
        if there:
            for s in range(0 if free_late else 2, 3): ops.append(('free', n + s))
            n += 3
        c += 1
    chunk(True, False)
    for t in range(tiles):
        for _ in range(chunks - 1): chunk(True, False)
        chunk(t + 1 < tiles, True)
    return ops

def stuck(stages, tiles, chunks, last_too):
    progs = [program(g, tiles, chunks, last_too) for g in (0, 1)]
    start = (0, 0, 0, 0, False, 0, 0)  # pcs, halves at barrier 0 and 1, group 1 waits, stages freed by each
    seen, todo = {start}, [start]
    while todo:
        p0, p1, b0, b1, waits, f0, f1 = todo.pop()
        nexts = []
        for g in (0, 1):
            pc = (p0, p1)[g]
            if pc == len(progs[g]) or (g == 1 and waits): continue
            op, arg = progs[g][pc]
            b, w, f = [b0, b1], waits, [f0, f1]
            if op == 'wait' and arg >= stages and min(f0, f1) <= arg - stages: continue
            if op == 'free': f[g] = arg + 1
            if op in ('sync', 'arrive'):
                b[arg] += 1
                if op == 'sync': w = True
                if b[arg] == 2:
                    b[arg] = 0
                    # completed by both, or by the first alone: then the second is not released by it
                    if op == 'sync' or (w and progs[1][p1 - 1] == ('sync', arg)): w = False
            q = [p0, p1]; q[g] += 1
            nexts.append((q[0], q[1], b[0], b[1], w, f[0], f[1]))
        if not nexts and (p0 < len(progs[0]) or p1 < len(progs[1]) or waits): return True
        for s in nexts:
            if s not in seen: seen.add(s); todo.append(s)
    return False

for last_too in (True, False):
    for stages in (5, 6, 7):
        print('barriers behind the last tile' if last_too else 'none there', '| stages', stages, '|',
              ' '.join('%d:%s' % (c, 'STUCK' if any(stuck(stages, t, c, last_too) for t in (1, 2, 3)) else 'ok') for c in (1, 2, 3, 4, 5)))
