package host

import (
	"net/netip"
	"os"
)

// NameServers are those that this machine asks now, best first, as /etc/resolv.conf names them. It is read anew on each
// call, because it changes with the network.
func NameServers() []netip.AddrPort { return systemEnv().nameServers() }

func (e *resolverEnv) nameServers() (out []netip.AddrPort) {
	text, err := os.ReadFile(e.path(resolvConfPath))
	if err != nil {
		return nil
	}
	list := nameservers(text)
	if onlyStub(list) { // which may ask us: ask those behind it
		if text, err := os.ReadFile(e.path(resolvedUplinks)); err == nil {
			if behind := nameservers(text); len(behind) > 0 {
				list = behind
			}
		}
	}
	for _, a := range list {
		out = append(out, netip.AddrPortFrom(a, dnsPort))
	}
	return out
}
