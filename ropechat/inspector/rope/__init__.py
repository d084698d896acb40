"""RoPE as a loaded model, or a config alone, really uses it: `ropechat rope`.

`spec` reads what a model does with positions; `formulas` and `compare` are the mathematics; `views` and
`measured` make views of both, which consist of `blocks`; `term`, `svg` and `output` write them.
"""
