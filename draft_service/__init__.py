"""The draft service: proposes what the target may say next.

Life of a Propose call:
1. ``servicer`` reads the message (``specdec.wire``) and makes a draft of it: ``drafting.Draft``, or what ``kinds`` has
   for ``lookup:`` and ``lookup:MODEL``. Those propose what followed before (``lookup``, ``lookup_drafting``), the first
   alone and at once, the other before the model and wherever something matches again.
2. The engine (``specdec.model.engine``) aligns the session's cache with the committed tokens and feeds what is missing.
3. ``drafting.draw`` turns the logits of every session in the batch into distributions (``specdec.sampling``), cuts them
   to the support, and draws a token each (``specdec.draws``).
4. Tokens are fed and drawn until gamma are there; the last one is not fed.
5. ``servicer`` writes tokens and distributions into the answer, as they were drawn.
6. With DRAFT_AHEAD_TOKENS, ``foresight`` says which outcomes of the round are likely (``ahead``), and the engine drafts
   on from them while no call needs it. The next Propose then begins with what is there for it.
"""
