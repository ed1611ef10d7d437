"""The ``specdec`` command: asks the coordinator for text, shows it as it arrives and says what speculation gained.

It sees only the contract (the ``specdec.v1`` stubs); neither models nor the services' code are imported here.
"""
