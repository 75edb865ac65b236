package path

import "net/netip"

func addr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
