"""fast_rnnt's losses, call-compatible with fast_rnnt 1.3: `import samplewise.integrations.fast_rnnt as fast_rnnt`.

They are those of `samplewise.integrations.k2`, where everything is said; the signatures below differ. Beside what differs from
k2: empty targets and T < S work, and a backward does not change the occupation probabilities that were returned (fast_rnnt
multiplies them in place by the upstream gradient).
"""

from __future__ import annotations
