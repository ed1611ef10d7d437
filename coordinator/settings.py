"""Settings of the coordinator: environment COORDINATOR_* and flags of the same names."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator
from pydantic_settings import SettingsConfigDict

from coordinator.places import check_place
from coordinator.tokens import check_tokens
from specdec.serving.server import MAX_MESSAGE_BYTES
from specdec.serving.settings import CertificateFile, CommaList, Port, ServiceSettings

Places = Annotated[CommaList, AfterValidator(lambda places: tuple(check_place(place) for place in places))]
Limit = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]


class CoordinatorSettings(ServiceSettings):
    """What the coordinator can be told."""

    model_config = SettingsConfigDict(env_prefix="COORDINATOR_")

    port: Port = 50051
    """Port for calls; 0 takes any free one."""
    draft_addresses: Places = ("127.0.0.1:50052",)
    """Draft replicas, host:port with commas between, or dns:///name:port for all of a name. Empty: no speculation."""
    target_addresses: Annotated[Places, Field(min_length=1)] = ("127.0.0.1:50053",)
    """Target replicas, host:port with commas between, or dns:///name:port for all of a name, new ones too."""
    peer_tls_ca: CertificateFile = ""
    """PEM file with the authorities that draft and target must be known to; empty: plaintext to them."""
    peer_tls_certificate: CertificateFile = ""
    """PEM file with the certificate chain to show draft and target (mutual TLS)."""
    peer_tls_key: str = ""
    """PEM file with that certificate's private key."""
    peer_tls_name: str = ""
    """Name that the certificates of draft and target must carry; empty: the host of each address."""
    redis_url: Annotated[str, Field(min_length=1)] = "redis://127.0.0.1:6379"
    """The Redis that keeps the sessions: redis://, rediss:// (TLS) or unix://."""
    redis_username: str = ""
    """User to be to Redis; empty: its default user, or the one in the URL."""
    redis_password: SecretStr = SecretStr("")
    """Password of that user; rather in the variable, where others do not see it."""
    redis_ca: CertificateFile = ""
    """PEM file with the authorities that a rediss:// server must be known to; empty: those of the system."""
    tokens_file: Annotated[str, AfterValidator(check_tokens)] = ""
    """File of bearer tokens, lines of PRINCIPAL:SHA256; a change counts at once. Empty: no token is asked for."""
    max_answers: Annotated[int, Field(ge=1)] = 1024
    """Answers running at once at most; more are refused with RESOURCE_EXHAUSTED before any work."""
    client_answers: Limit = 0
    """Answers that one client (a principal or, without tokens, an address) may have running at once; 0 is no limit."""
    client_calls_per_minute: Limit = 0
    """Calls that one client may make a minute; 0 is no limit."""
    client_tokens_per_minute: Limit = 0
    """Tokens that one client may be answered with a minute; 0 is no limit."""
    max_request_bytes: Annotated[int, Field(ge=2**16, le=MAX_MESSAGE_BYTES)] = 2**20
    """Bytes of a request at most. The default takes 131,072 tokens of 8 bytes; a longer context may need more."""
    tokenizer: str = ""
    """Folder or hub id of the tokenizer; empty: where the target says. A target of another vocabulary is refused."""
    max_gamma: Annotated[int, Field(ge=0, le=64)] = 16
    """Draft tokens a request may ask for a round at most."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    """Tokens of an answer at most, where neither the request nor the model says it."""
    session_ttl: Seconds = 86400.0
    """Seconds a session is kept after its last change."""
    lease_seconds: Seconds = 15.0
    """Seconds a coordinator that died keeps its sessions from others."""
    peer_wait_seconds: Annotated[float, Field(ge=0)] = 10.0
    """Seconds an answer waits for a target, or for Redis to take what it has come to, when none is there."""
    propose_timeout: Seconds = 30.0
    """Seconds after which a silent draft counts as gone. Long: a slow proposal must not be dropped."""
    verify_timeout: Seconds = 300.0
    """Seconds after which a silent target counts as gone; a long prompt is fed in one call."""

    @property
    def redis_options(self) -> dict[str, str]:
        """What connections to Redis are opened with beside the URL."""
        options = {
            "username": self.redis_username,
            "password": self.redis_password.get_secret_value(),
            "ssl_ca_certs": self.redis_ca,
        }
        return {name: value for name, value in options.items() if value}

    @model_validator(mode="after")
    def _redis_is_named(self) -> Self:
        if not self.redis_url.startswith(("redis://", "rediss://", "unix://")):  # not shown: it may hold a password
            raise ValueError("COORDINATOR_REDIS_URL begins with redis://, rediss:// or unix://")
        if self.redis_ca and not self.redis_url.startswith("rediss://"):
            raise ValueError("COORDINATOR_REDIS_CA is for a COORDINATOR_REDIS_URL that begins with rediss://")
        self._check_needed("redis_username", "redis_password")
        return self

    @model_validator(mode="after")
    def _peer_tls_files_fit(self) -> Self:
        self._check_pair("peer_tls_certificate", "peer_tls_key")
        self._check_needed("peer_tls_certificate", "peer_tls_ca")
        self._check_needed("peer_tls_name", "peer_tls_ca")
        return self
