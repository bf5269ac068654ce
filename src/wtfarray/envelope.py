"""The joint solver: L-BFGS over all blocks at once on the value function of the inner problem."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from array_api_compat import array_namespace

from wtfarray._host import to_host
from wtfarray._typing import Array
from wtfarray.legendre import entropy_value
from wtfarray.optimize._curvature import CurvaturePairs
from wtfarray.optimize._objective import Point
from wtfarray.sphere import from_sphere, pull_back, to_sphere


class Objective:
    def __init__(self, model, terms, rho, constraints, shapes, max_inner=60):
        self.model, self.terms, self.rho, self.constraints, self.shapes = model, terms, rho, constraints, shapes
        self.sizes = [math.prod(s) for s in shapes]
        self.max_inner = max_inner
        self.n = 0

    def split(self, x):
        xp = array_namespace(x); out, i = [], 0
        for s, n in zip(self.shapes, self.sizes):
            out.append(xp.reshape(x[i:i + n], s)); i += n
        return out

    def pack(self, ps):
        xp = array_namespace(*ps)
        return xp.concat([xp.reshape(p, (-1,)) for p in ps])

    def blocks(self, x):
        return [from_sphere(p, c) for p, c in zip(self.split(x), self.constraints)]

    def __call__(self, x, tol, direction=None):
        xp = array_namespace(x); self.n += 1
        ps = self.split(x); blocks = [from_sphere(p, c) for p, c in zip(ps, self.constraints)]
        Y = self.model.tensor(blocks)
        value = err = 0.0; conv = True; U = 0.0
        for t in self.terms:
            v = t.evaluate(Y, tol / len(self.terms), self.max_inner)
            value += v.value; err += v.error; conv &= v.converged; U = U + v.gradient
        tiny = float(xp.finfo(x.dtype).smallest_normal)
        ent = sum(rho * entropy_value(b, xp) for b, rho in zip(blocks, self.rho))
        G = [a + rho * xp.log(xp.maximum(b, tiny)) for a, b, rho in zip(self.model.adjoints(U, blocks), blocks, self.rho)]
        g = self.pack([pull_back(p, b, gr, c) for p, b, gr, c in zip(ps, blocks, G, self.constraints)])
        sq = xp.vecdot(g, g); sl = sq * 0.0 if direction is None else xp.vecdot(g, direction)
        n, s, l, e = to_host(xp.stack([xp.max(xp.abs(g)), sq, sl, ent])).tolist()
        return Point(x, g, value + err + e, n, s, l), err, conv


def run(obj, x, levels, scale, tol=1e-6, verbose=0, tl=60, kappa=0.03, mem=20, its_c=40, ftol_c=1e-3):
    xp = array_namespace(x); t0 = time.time()
    pairs = None
    for level in levels:
        for t in obj.terms: t.set_level(level)
        last = level == 1.0
        ftol = tol if last else ftol_c
        pt, dec, conv = obj(x, 0.02 * scale * level)
        if pairs is None: pairs = CurvaturePairs(pt, mem, float(xp.finfo(x.dtype).eps), xp)
        else: pairs.renew(pt)
        df, tight, fails, small = math.inf, 1.0, 0, 0
        for k in range(300 if last else its_c):
            d, gd = pairs.direction(pt)
            if not gd < 0: pairs.clear(); d, gd = pairs.direction(pt)
            t, ok = 1.0, False
            bases = [term.solver.g for term in obj.terms]
            for ls in range(10):
                if ls:
                    for term, g in zip(obj.terms, bases): term.solver.g = g
                dtol = max(kappa * tight * min(df, -gd), 1e-11 * abs(pt.value))
                new, decn, conv = obj(x + t * d, dtol, d)
                noise = dec + decn + 1e-11 * abs(pt.value)
                if conv and new.value <= pt.value + 1e-4 * t * gd: ok = True; break
                if conv and new.value <= pt.value + noise and new.slope <= 0.5 * abs(gd): ok = True; break
                if not conv and ls < 3: t *= .3; continue
                if ls in (1, 4) and dec > 1e-10 * abs(pt.value):
                    tight *= .3
                    for term, g in zip(obj.terms, bases): term.solver.g = g
                    pt, dec, _ = obj(x, .3 * min(dec, dtol), d); gd = pt.slope
                    pairs.renew(pt)
                    bases = [term.solver.g for term in obj.terms]
                    if new.value <= pt.value + 1e-4 * t * gd: ok = True; break
                    if gd >= 0: break
                curv = new.value - pt.value - gd * t
                tq = -gd * t * t / (2 * curv) if curv > 0 else .5 * t
                t = min(max(tq, .1 * t), .5 * t)
            if not ok:
                fails += 1
                if verbose: print('   fail', k, t)
                if fails > 3: break
                pairs.clear(); tight *= .3
                for term, g in zip(obj.terms, bases): term.solver.g = g
                continue
            fails = 0; tight = min(1., tight * 2)
            pairs.update(pt, new)
            drop = pt.value - new.value
            df = max(drop, 1e-12 * abs(pt.value)) if drop > 0 else .5 * min(df, -gd)
            small = small + 1 if drop < ftol * max(abs(pt.value), 1) else 0
            pt, dec, x = new, decn, new.x
            if verbose and k % verbose == 0: print(level, k, 'f %.5f' % pt.value, 'df %.1e' % df, 'dec %.1e' % dec, 'n', obj.n, 'ev', [t.solver.evaluations for t in obj.terms], '%.2f' % (time.time() - t0), flush=True)
            if small >= 3 or time.time() - t0 > tl: break
        if verbose: print('-- level', level, k, pt.value, 'nf', obj.n, 't %.2f' % (time.time() - t0))
        if time.time() - t0 > tl: break
    return x, pt
