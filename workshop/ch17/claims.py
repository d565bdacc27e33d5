"""What chapter 17 claims: of its runs, and in its scorecard."""

AGED = "{{tokens up to {} updates old | plain sums, a pipeline, lr {}}}"
SCORECARD = (  # numbers in braces: `verdicts.table.scored`; the others are asserted in the chapter
    {
        "claim": "no trained token is more than K updates old",
        "exact": "b + ⌊i / B⌋ ≤ v + K",
        "pressing": "K = 4, your rule: never above 4, in two runs (section 5)",
        "paper": "ScaleRL: K = 8",
    },
    {
        "claim": "old keys and values may stay",
        "pressing": "kept: fresh tokens off by less than 0.005 nats (section 5)",
        "control": "computed again: by less than 0.00001",
        "paper": "PipelineRL keeps them",
    },
    {
        "claim": "where no token is old, every ratio is 1",
        "exact": "the same weights",
        "pressing": "within 0.0001 (section 5)",
    },
    {
        "claim": "a death costs no update",
        "pressing": "two kills, 24 updates of 24; those made again equal to the bit (section 7)",
    },
    {
        "claim": "age costs accuracy, at one rate for all",
        "pressing": f"K = 2: {AGED.format(2, '4e-4')}, K = 8: {AGED.format(8, '4e-4')}",
        "control": f"at half the rate: {AGED.format(2, '2e-4')} and {AGED.format(8, '2e-4')}",
        "paper": "ScaleRL: K = 8 and 4 alike",
    },
)
