package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// RouteProtocol marks the routes that weft adds (rtm_protocol). Values above
	// 4 are for whoever takes one; rt_protos(5) lists no owner of 87, 'W'.
	RouteProtocol = 87

	// minIPv6MTU in bytes: RFC 8200 section 5. Linux takes IPv6 off a link
	// with less.
	minIPv6MTU = 1280

	// reconcilePasses: one that changes, one that puts back what the kernel took
	// along (with the last IPv4 address of a link go all its routes, with the
	// first of a subnet its secondaries), and one that finds all well.
	reconcilePasses = 3
)

// ConfigureLink brings the link that the engine created to this state: the given
// MTU in bytes (0 leaves it), up, exactly these addresses (the kernel's own
// IPv6 link-local ones aside), and of the routes that carry RouteProtocol exactly
// these. Other routes over the link, and every other link, are left alone.
//
// Addresses go in without the route to their prefix and without duplicate
// address detection, so they can be bound at once.
//
// With IPv6 switched off on the machine the IPv4 part is done all the same and
// the error is ErrIPv6Disabled.
func ConfigureLink(name string, addrs, routes []netip.Prefix, mtu int) error {
	is6 := func(p netip.Prefix) bool { return !p.Addr().Unmap().Is4() }
	if mtu != 0 && mtu < minIPv6MTU && slices.ContainsFunc(addrs, is6) {
		return fmt.Errorf("configure %s: an MTU of %d bytes is too small for IPv6: set at least %d", name, mtu, minIPv6MTU)
	}
	for _, p := range slices.Concat(addrs, routes) {
		if !p.IsValid() {
			return fmt.Errorf("configure %s: %v is not an address with a prefix length", name, p)
		}
	}
	link, err := netlink.LinkByName(name)
	if isLinkNotFound(err) {
		return fmt.Errorf("configure %s: there is no such interface", name)
	}
	if err != nil {
		return fmt.Errorf("configure %s: look it up: %w", name, err)
	}
	at := link.Attrs()
	if mtu != 0 && at.MTU != mtu {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("configure %s: set its MTU to %d bytes: %w", name, mtu, advice(err))
		}
	}
	if at.RawFlags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("configure %s: switch it on: %w", name, advice(err))
		}
	}
	if err := joinGroup(link); err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	v4 := reconcileFamily(link, netlink.FAMILY_V4, addrs, routes)
	v6 := reconcileFamily(link, netlink.FAMILY_V6, addrs, routes)
	if err := sentence(v4, v6); err != nil {
		return fmt.Errorf("configure %s: %w", name, err)
	}
	return nil
}

// linkFamily is what one address family of a link has and should have.
type linkFamily struct {
	link   netlink.Link
	family int
	addrs  []netip.Prefix // wanted
	routes []netip.Prefix // wanted, masked
}

func reconcileFamily(link netlink.Link, family int, addrs, routes []netip.Prefix) error {
	f := linkFamily{link: link, family: family}
	for _, p := range addrs {
		if p = unmap(p); p.Addr().Is4() == (family == netlink.FAMILY_V4) && !slices.Contains(f.addrs, p) {
			f.addrs = append(f.addrs, p)
		}
	}
	for _, p := range routes {
		if p = unmap(p).Masked(); p.Addr().Is4() == (family == netlink.FAMILY_V4) && !slices.Contains(f.routes, p) {
			f.routes = append(f.routes, p)
		}
	}
	for range reconcilePasses {
		changed, err := f.pass()
		if err != nil || !changed {
			return err
		}
	}
	return nil
}

// pass adds before it removes: a connection over an address or route that stays
// does not notice.
func (f *linkFamily) pass() (changed bool, err error) {
	haveAddrs, err := f.listAddrs()
	if err != nil {
		return false, err
	}
	haveRoutes, err := f.listRoutes()
	if err != nil {
		return false, err
	}
	for _, p := range f.addrs {
		if have, ok := haveAddrs[p]; ok && have.Flags&f.addrFlags() == f.addrFlags() {
			continue
		}
		// Replace and not add: an address of somebody else's making gets our
		// flags.
		err := netlink.AddrReplace(f.link, &netlink.Addr{IPNet: netOf(p), Flags: f.addrFlags()})
		if f.family == netlink.FAMILY_V6 && isIPv6Off(err) {
			return false, ErrIPv6Disabled
		}
		if err != nil {
			return false, fmt.Errorf("add the address %v: %w", p, advice(err))
		}
		changed = true
	}
	for _, p := range f.routes {
		if _, ok := haveRoutes[p]; ok {
			continue
		}
		// Add and not replace: for IPv4, replace takes over the route of the
		// same prefix even where it belongs to another interface.
		err := netlink.RouteAdd(f.route(p))
		switch {
		case err == nil:
			changed = true
		case errors.Is(err, unix.EEXIST):
			return changed, fmt.Errorf("add the route to %v: this machine already has one by another interface: "+
				"remove that one or give the overlay another address range", p)
		case f.family == netlink.FAMILY_V6 && isIPv6Off(err):
			return changed, ErrIPv6Disabled
		default:
			return changed, fmt.Errorf("add the route to %v: %w", p, advice(err))
		}
	}
	for p, r := range haveRoutes {
		if slices.Contains(f.routes, p) {
			continue
		}
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return changed, fmt.Errorf("remove the route to %v: %w", p, advice(err))
		}
		changed = true
	}
	for p, a := range haveAddrs {
		if slices.Contains(f.addrs, p) || p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
			continue
		}
		if err := netlink.AddrDel(f.link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return changed, fmt.Errorf("remove the address %v: %w", p, advice(err))
		}
		changed = true
	}
	return changed, nil
}

func (f *linkFamily) addrFlags() int {
	if f.family == netlink.FAMILY_V6 {
		return unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD
	}
	return unix.IFA_F_NOPREFIXROUTE
}

func (f *linkFamily) route(dst netip.Prefix) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: f.link.Attrs().Index,
		Dst:       netOf(dst),
		Protocol:  RouteProtocol,
		Table:     unix.RT_TABLE_MAIN,
	}
	if f.family == netlink.FAMILY_V4 {
		r.Scope = netlink.SCOPE_LINK // no gateway: the destination is on the link
	}
	return r
}

func (f *linkFamily) listAddrs() (map[netip.Prefix]netlink.Addr, error) {
	list, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(f.link, f.family) })
	if err != nil {
		return nil, fmt.Errorf("list its addresses: %w", err)
	}
	out := make(map[netip.Prefix]netlink.Addr, len(list))
	for _, a := range list {
		if p, ok := prefixOf(a.IPNet); ok {
			out[p] = a
		}
	}
	return out, nil
}

// listRoutes lists our routes over the link.
func (f *linkFamily) listRoutes() (map[netip.Prefix]netlink.Route, error) {
	list, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(f.family,
			&netlink.Route{LinkIndex: f.link.Attrs().Index, Protocol: RouteProtocol, Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list its routes: %w", err)
	}
	out := make(map[netip.Prefix]netlink.Route, len(list))
	for _, r := range list {
		if p, ok := prefixOf(r.Dst); ok {
			out[p] = r
		}
	}
	return out, nil
}

func unmap(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4In6() {
		return p
	}
	return netip.PrefixFrom(p.Addr().Unmap(), max(p.Bits()-96, 0))
}

// isIPv6Off: EACCES is the kernel's answer for an address on a link with
// disable_ipv6, the others come from a kernel that was started without IPv6.
func isIPv6Off(err error) bool {
	return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT)
}

// advice adds to an error of the kernel what a person can do about it.
func advice(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("no permission (%w): run as root or with CAP_NET_ADMIN, or use --userspace", err)
	}
	return err
}
