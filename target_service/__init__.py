"""The target service: decides what stands.

Life of a Verify call:
1. ``servicer`` reads the message (``specdec.wire``) and makes a ``verifying.Verify`` of it.
2. ``Verify.begin`` refuses a proposal that was not drawn as it says (``specdec.verification.check_draws``).
3. The engine (``specdec.model.engine``) aligns the session's cache with the committed tokens and feeds what is missing
   and the draft tokens, in one pass beside the other sessions.
4. ``verifying.decide`` turns the logits into distributions (``specdec.sampling``) and into verdicts
   (``specdec.verification``).
5. The cache is cut to the tokens that stand; ``servicer`` writes the verdict into the answer.
"""
