"""Router and session server in front of any SGLang-compatible engine.

`miles_router.app.create_router_app`, `miles_router.sessions.app.create_session_app`, `miles_router.serve`.
"""

__version__ = "0.1.0"
