"""Who sends, for limits: an address, or all of an IPv6 network that its owner can choose addresses from."""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

OWN_BITS = 64
"""The smallest network that anybody is given: whoever has one address of it has all 2**64."""


@lru_cache(maxsize=1024)
def sender_of(address: str) -> str:
    """What is counted as one: an IPv4 address, an IPv6 network of 64 bits; what is neither stands for itself."""
    try:
        read = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(read, IPv6Address):
        return str(read)
    if read.ipv4_mapped is not None:  # as a socket for both kinds shows an IPv4 address
        return str(read.ipv4_mapped)
    return str(IPv6Network((read, OWN_BITS), strict=False))
