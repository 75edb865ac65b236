package netns

import (
	"fmt"
	"net/netip"
	"slices"
)

// AddLAN adds a network with addresses of the caller's: the switch of an office, which leads nowhere by itself. Its
// gateway is the host whose further leg [AsGateway] gives the first address; hosts and legs that are added have the
// next ones in turn, and its hosts send by the gateway. Make it before the routers, whose insides then keep away from
// its addresses. six is the zero prefix where it has no IPv6.
func (l *Lab) AddLAN(name string, four, six netip.Prefix) (*Network, error) {
	n, err := l.addLAN(name, four, six)
	if err != nil {
		return nil, fmt.Errorf("adding the lan %s: %w", name, err)
	}
	return n, nil
}

func (l *Lab) addLAN(name string, four, six netip.Prefix) (n *Network, err error) {
	l.mu.Lock()
	for _, p := range []netip.Prefix{four, six} {
		if p.IsValid() && slices.ContainsFunc(append([]netip.Prefix{publicPrefix4, routedPrefix4, routedPrefix6}, l.lans...), p.Overlaps) {
			err = fmt.Errorf("the network %v is in use", p)
		}
	}
	if four.Overlaps(insidePrefix4) && l.nets4 > 0 {
		err = fmt.Errorf("the network %v may be that of a router: add lans first", four)
	}
	if err == nil {
		l.lans = append(l.lans, four)
		if six.IsValid() {
			l.lans = append(l.lans, six)
		}
	}
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	n = &Network{lab: l, prefix4: four.Masked(), prefix6: six, lan: true}
	if n.gateway, err = l.namespace(name); err != nil {
		return nil, err
	}
	return n, batch(n.gateway,
		"link add "+lanLink+" type bridge forward_delay 0",
		"link set "+lanLink+" addrgenmode none up")
}

// AsGateway gives a further leg the first address of a lan.
func AsGateway() HostOption { return func(c *hostConfig) { c.first = true } }
