"""specdec: the library that the draft, target and coordinator services share.

It sees no service. Sampling, verification and draws are the mathematics; wire is the only codec; model is what runs a
model; serving is what runs a service.
"""
