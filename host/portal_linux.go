package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// How the kernel hands a machine's own address on.
//
// The local table, in which the address is the machine's own, is asked before every other, and nothing can come before its
// rule, which is the first of all. So the remote end moves that rule behind one of ours: what nftables has marked as the client's is
// looked up in a table that leads it into the overlay, and everything else goes on to the local table as ever. The moved
// rule has the kernel's own protocol number: network managers take away rules that they do not know, and without this one the
// machine would not know its own addresses. Should a process be killed, what is left leads nowhere: the table loses its route with
// the overlay's interface, and the local table is next.
//
// The local end has rules for what comes by the overlay's interface and by the client's, and none for anybody else: that machine
// goes on reaching the address, where the other end is, by its uplinks.
const (
	remotePriority = 1 // of the remote end's rule
	movedPriority  = 2 // of the local table's, moved

	// Priorities of the local end's rules: before those of OverlayRoutes, which are for what this machine itself sends.
	fromTUNPriority  = 5180
	fromLanPriority  = 5181
	errorsPriority   = 5182
	toLanPriority    = 5183
	lastPortalNumber = toLanPriority

	// toClientTable and fromClientTable + 16 bits made of the overlay interface's name are our routing tables.
	toClientTable   = 89 << 16
	fromClientTable = 90 << 16
)

func toClient(tun string) int   { return tableOf(tun) - routesTable + toClientTable }
func fromClient(tun string) int { return tableOf(tun) - routesTable + fromClientTable }

// OpenPortalRemote makes the machine the remote end of a portal, in place of what an earlier call made of it. An error leaves
// nothing behind.
func OpenPortalRemote(p PortalRemote) error {
	if err := ClosePortal(p.TUN, p.StateDir); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return fmt.Errorf("hand the addresses of %s to the client: %w", p.Interface, sentence(err, ClosePortal(p.TUN, p.StateDir)))
	}
	return nil
}

func (p PortalRemote) open() error {
	link, err := netlink.LinkByName(p.TUN)
	if err != nil {
		return fmt.Errorf("look up %s: %w", p.TUN, err)
	}
	// The client's connections and the machine's own may be the same but for what nftables tells apart, and a socket that takes
	// packets before they are routed would not see the difference.
	settings := []setting{
		{settingPath("net/ipv4/ip_early_demux"), "0"},
		{settingPath("net/ipv4/conf", p.TUN, "accept_local"), "1"}, // the client's packets come from an address of this machine
	}
	settings = append(settings, reversePath(p.TUN)...)
	if slices.ContainsFunc(p.Addrs, netip.Addr.Is6) {
		settings = append(settings, hearing()...)
	}
	if err := changeSettings(p.StateDir, settings, nil); err != nil {
		return err
	}
	if err := p.filter(); err != nil {
		return err
	}
	for _, a := range p.Addrs {
		family := familyOf(a)
		r := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(single(a)), Table: toClient(p.TUN), Protocol: RouteProtocol, Family: family}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("add the route to the client: %w", advice(err))
		}
		mask := uint32(PortalMark)
		rule := netlink.NewRule()
		rule.Priority, rule.Table, rule.IifName, rule.Mark, rule.Mask = remotePriority, toClient(p.TUN), p.Interface, PortalMark, &mask
		if err := addRule(rule, family); err != nil {
			return err
		}
		if err := moveLocal(family, 0, movedPriority); err != nil {
			return err
		}
		if err := switchForwarding(a.Is4()); err != nil {
			return err
		}
	}
	return nil
}

// OpenPortalLocal makes the machine the local end of a portal, in place of what an earlier call made of it. An error leaves
// nothing behind.
func OpenPortalLocal(p PortalLocal) error {
	if err := ClosePortal(p.TUN, p.StateDir); err != nil {
		return err
	}
	if err := p.open(); err != nil {
		return fmt.Errorf("serve the client at %s: %w", p.Lan, sentence(err, ClosePortal(p.TUN, p.StateDir)))
	}
	return nil
}

func (p PortalLocal) open() error {
	tun, err := netlink.LinkByName(p.TUN)
	if err != nil {
		return fmt.Errorf("look up %s: %w", p.TUN, err)
	}
	lan, err := netlink.LinkByName(p.Lan)
	if isLinkNotFound(err) {
		return errors.New("there is no such interface")
	}
	if err != nil {
		return fmt.Errorf("look it up: %w", err)
	}
	addrs := p.lanAddrs()
	if err := changeSettings(p.StateDir, p.settings(), lanAddrs{p.Lan, addrs}.missing(lan)); err != nil {
		return err
	}
	if err := p.filter(); err != nil {
		return err
	}
	if lan.Attrs().RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(lan); err != nil {
			return fmt.Errorf("switch it on: %w", advice(err))
		}
	}
	for _, a := range addrs {
		flags := unix.IFA_F_NODAD
		if a.Addr().Is4() && a != p.Share {
			flags |= unix.IFA_F_NOPREFIXROUTE
		}
		if err := netlink.AddrReplace(lan, &netlink.Addr{IPNet: netOf(a), Flags: flags}); err != nil && !isIPv6Off(err) {
			return fmt.Errorf("give it the address %v: %w", a, advice(err))
		}
	}
	for _, a := range p.Addrs {
		if p.Share.IsValid() && !a.Is4() {
			continue
		}
		if err := p.lead(a, tun.Attrs().Index, lan.Attrs().Index); err != nil {
			return err
		}
		if err := switchForwarding(a.Is4()); err != nil {
			return err
		}
	}
	return nil
}

// settings are what the client's interface has to be like for it to find the world there.
func (p PortalLocal) settings() []setting {
	out := append(reversePath(p.TUN), reversePath(p.Lan)...)
	if !p.Share.IsValid() && p.Net.IsValid() && p.Net.Bits() < 31 {
		out = append(out, setting{settingPath("net/ipv4/conf", p.Lan, "proxy_arp"), "1"}) // for the rest of its network
	}
	for _, i := range append([]string{p.Lan}, p.Uplinks...) {
		out = append(out,
			setting{settingPath("net/ipv4/conf", i, "arp_ignore"), "1"},
			setting{settingPath("net/ipv4/conf", i, "arp_announce"), "2"})
	}
	return out
}

// lanAddrs are this machine's addresses at the client's interface.
func (p PortalLocal) lanAddrs() (out []netip.Prefix) {
	if p.Share.IsValid() {
		return []netip.Prefix{p.Share}
	}
	for _, a := range p.Addrs {
		switch {
		case a.Is4() && p.Gateway.IsValid():
			out = append(out, single(p.Gateway))
		case !a.Is4():
			out = append(out, netip.PrefixFrom(PortalGateway6, 64))
		}
	}
	return out
}

// lead makes tables and rules for one address.
func (p PortalLocal) lead(a netip.Addr, tun, lan int) error {
	family, all := familyOf(a), anyOf(a)
	route := func(table, index, kind int, dst netip.Prefix) error {
		r := &netlink.Route{LinkIndex: index, Dst: netOf(dst), Type: kind, Table: table, Protocol: RouteProtocol, Family: family}
		if family == netlink.FAMILY_V4 && kind == unix.RTN_UNICAST {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("add the route to %v: %w", dst, advice(err))
		}
		return nil
	}
	var errs []error
	if p.Share.IsValid() {
		errs = append(errs, route(fromClient(p.TUN), lan, unix.RTN_UNICAST, p.Share.Masked()))
	} else {
		errs = append(errs,
			route(toClient(p.TUN), lan, unix.RTN_UNICAST, single(a)),
			route(fromClient(p.TUN), lan, unix.RTN_UNICAST, single(a))) // else its own address would be answered for
	}
	for _, o := range p.Overlay {
		if o.Addr().Is4() == a.Is4() {
			errs = append(errs, route(fromClient(p.TUN), 0, unix.RTN_UNREACHABLE, o))
		}
	}
	errs = append(errs, route(fromClient(p.TUN), tun, unix.RTN_UNICAST, all))
	if err := sentence(errs...); err != nil {
		return err
	}
	from := single(a)
	if p.Share.IsValid() {
		from = p.Share.Masked()
	}
	out := netlink.NewRule()
	out.Priority, out.Table, out.IifName, out.Src = fromLanPriority, fromClient(p.TUN), p.Lan, netOf(from)
	if err := addRule(out, family); err != nil || p.Share.IsValid() {
		return err
	}
	in := netlink.NewRule()
	in.Priority, in.Table, in.IifName, in.Dst = fromTUNPriority, toClient(p.TUN), p.TUN, netOf(single(a))
	// What this machine says to the client itself: errors about its packets, and leases.
	said := netlink.NewRule()
	said.Priority, said.Table, said.IifName, said.Dst, said.IPProto = errorsPriority, toClient(p.TUN), "lo", netOf(single(a)), unix.IPPROTO_ICMP
	if family == netlink.FAMILY_V6 {
		said.IPProto = unix.IPPROTO_ICMPV6
	}
	bound := netlink.NewRule()
	bound.Priority, bound.Table, bound.OifName, bound.Dst = toLanPriority, toClient(p.TUN), p.Lan, netOf(single(a))
	return sentence(addRule(in, family), addRule(said, family), addRule(bound, family))
}

// ClosePortal takes back what OpenPortalRemote or OpenPortalLocal did for an overlay interface of this name, also in a process
// that is no more.
func ClosePortal(tun, stateDir string) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if family == netlink.FAMILY_V6 && !hasIPv6("all") {
			continue
		}
		errs = append(errs, unroute(tun, family))
	}
	errs = append(errs, stopForwarding(portalTable(tun)), restoreSettings(stateDir))
	if err := sentence(errs...); err != nil {
		return fmt.Errorf("take back the portal of %s: %w", tun, err)
	}
	return nil
}

// unroute removes rules and routes of one family, and puts the local table's rule back when no other portal needs it moved.
func unroute(tun string, family int) error {
	rules, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
	if err != nil {
		return fmt.Errorf("list the rules: %w", err)
	}
	var errs []error
	others := false
	for _, r := range rules {
		if r.Table != toClient(tun) && r.Table != fromClient(tun) {
			others = others || r.Priority == remotePriority && r.Protocol == RouteProtocol
			continue
		}
		r.Family = family
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove a rule: %w", advice(err)))
		}
	}
	if !others {
		errs = append(errs, moveLocal(family, movedPriority, 0))
	}
	for _, table := range []int{toClient(tun), fromClient(tun)} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
		})
		errs = append(errs, err)
		for _, r := range routes {
			if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("remove a route: %w", advice(err)))
			}
		}
	}
	return sentence(errs...)
}

// moveLocal moves the local table's rule: the new one is there before the old one goes. Where it is not at the first place
// somebody else has moved it, and it stays where it is.
func moveLocal(family, from, to int) error {
	rules, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
	if err != nil {
		return fmt.Errorf("list the rules: %w", err)
	}
	at := func(priority int) int {
		return slices.IndexFunc(rules, func(r netlink.Rule) bool {
			return r.Priority == priority && r.Table == unix.RT_TABLE_LOCAL && r.IifName == "" && r.Src == nil && r.Dst == nil && r.Mark == 0
		})
	}
	old := at(from)
	if old < 0 {
		return nil
	}
	if at(to) < 0 {
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family, r.Protocol = to, unix.RT_TABLE_LOCAL, family, unix.RTPROT_KERNEL
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("move the rule of the local table: %w", advice(err))
		}
	}
	r := rules[old]
	r.Family = family
	if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("move the rule of the local table: %w", advice(err))
	}
	return nil
}

func addRule(r *netlink.Rule, family int) error {
	r.Family, r.Protocol = family, RouteProtocol
	if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a rule: %w", advice(err))
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// anyOf is everything that an address's family has.
func anyOf(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}
