package host

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Networks behind routers are not in the main table, where weft's own packets to a router that has an address in its own
// network would go into the tunnel to it. They are in a table of the interface's, in which everything looks but what has
// [Mark]. It comes before the main table, so that no route that somebody hands this machine (DHCP's option 121, CVE-2024-3661) is more
// specific than what the overlay has. Where the overlay has not everything (no exit node), networks that this machine is attached
// to come first: a laptop that comes home to the network it has a route to is at home.
const (
	// routesPriority is of the rule: behind those of ForwardWithin, before the main table's.
	routesPriority = 5190
	// routesTable + 16 bits made of the interface's name is the number of its table: the next process of that name finds it.
	routesTable = 86 << 16
	// lastMetric is of the route that is taken when there is no other: a number that an int of 32 bits has room for, too.
	lastMetric = 1<<31 - 1
)

func tableOf(name string) int {
	h := fnv.New32a()
	h.Write([]byte(name))
	return routesTable + int(uint16(h.Sum32()^h.Sum32()>>16))
}

// private are networks that the public internet has not (RFC 1918, RFC 6598, RFC 3927, RFC 5771, RFC 1112, RFC 4193, RFC 4291),
// and no machine but this one.
var private = prefixList("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/8",
	"224.0.0.0/4", "240.0.0.0/4", "fc00::/7", "fe80::/10", "ff00::/8", "::1/128", "::/128")

// linkLocal is reached without routers, and routes of the overlay have nothing to do with it.
var linkLocal = prefixList("fe80::/10", "ff00::/8")

// nearby is what LAN leaves as it is besides the networks of interfaces: neighbours that find each other.
var nearby = prefixList("169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32")

func prefixList(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// SetOverlayRoutes makes these the routes into the overlay, and no others. It returns which networks this machine is
// attached to itself, so that packets to them do not go into the overlay.
func SetOverlayRoutes(r OverlayRoutes) (attached []netip.Prefix, err error) {
	link, err := netlink.LinkByName(r.Interface)
	if err != nil && (!isLinkNotFound(err) || !r.Exit) {
		return nil, fmt.Errorf("routes into the overlay: look up %s: %w", r.Interface, err)
	}
	index := 0
	if err == nil {
		index = link.Attrs().Index
	}
	if attached, err = r.attached(); err != nil {
		return nil, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if family == netlink.FAMILY_V6 && !hasIPv6("all") {
			continue
		}
		if err := reconcileTable(tableOf(r.Interface), family, r.wanted(family, index, attached)); err != nil {
			return attached, fmt.Errorf("routes into the overlay: %w", err)
		}
	}
	if err := closeLeaks(r, attached); err != nil {
		return attached, fmt.Errorf("routes into the overlay: %w", err)
	}
	return attached, nil
}

// ClearOverlayRoutes takes back what SetOverlayRoutes did for an interface of this name, also in a process that is no more.
func ClearOverlayRoutes(name string) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if family == netlink.FAMILY_V6 && !hasIPv6("all") {
			continue
		}
		errs = append(errs, reconcileTable(tableOf(name), family, nil))
	}
	if err := sentence(append(errs, putBack(exitTable(name)), dropTable(exitTable(name)))...); err != nil {
		return fmt.Errorf("take back the routes into the overlay: %w", err)
	}
	return nil
}

// attached are the networks of other interfaces that come before what the overlay has.
func (r OverlayRoutes) attached() (out []netip.Prefix, err error) {
	if r.Exit && !r.LAN {
		return nil, nil
	}
	ifaces, err := Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range ifaces {
		if i.Loopback || i.Name == r.Interface {
			continue
		}
		for _, p := range i.Addrs {
			p = unmap(p).Masked()
			covers := func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Contains(p.Addr()) }
			if r.Exit && !slices.ContainsFunc(private, covers) || !r.Exit && !slices.ContainsFunc(r.Networks, covers) ||
				p.IsSingleIP() || slices.Contains(out, p) {
				continue
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// apart is all that does not go into the overlay, whatever that has.
func (r OverlayRoutes) apart(attached []netip.Prefix) []netip.Prefix {
	out := slices.Clone(attached)
	if r.Exit {
		out = append(out, linkLocal...)
		if r.LAN {
			out = append(out, nearby...)
		}
	}
	return out
}

// A tableRoute is one of the table, as far as they differ.
type tableRoute struct {
	dst    netip.Prefix
	kind   int // unix.RTN_
	index  int
	metric int
}

// wanted are the table's routes of a family. index is the overlay's interface, 0 when it is not there.
func (r OverlayRoutes) wanted(family, index int, attached []netip.Prefix) (out []tableRoute) {
	any := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if family == netlink.FAMILY_V4 {
		any = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	add := func(x tableRoute) {
		if (x.dst.Addr().Is4()) == (family == netlink.FAMILY_V4) && !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	throw := r.apart(attached)
	for _, p := range throw {
		add(tableRoute{dst: p, kind: unix.RTN_THROW})
	}
	for _, p := range r.Networks {
		if p = unmap(p).Masked(); index != 0 && !slices.Contains(throw, p) {
			add(tableRoute{dst: p, kind: unix.RTN_UNICAST, index: index})
		}
	}
	if r.Exit {
		add(tableRoute{dst: any, kind: unix.RTN_UNREACHABLE, metric: lastMetric})
	}
	return out
}

// reconcileTable makes the table of a family have these routes; the rule that leads there is only there when there are some. What
// closes comes before what opens, and goes after it.
func reconcileTable(table, family int, want []tableRoute) error {
	have, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return fmt.Errorf("list the table %d: %w", table, err)
	}
	rules, err := rulesTo(table, family)
	if err != nil {
		return err
	}
	if len(want) == 0 {
		for _, r := range rules {
			if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove the rule for table %d: %w", table, advice(err))
			}
		}
	}
	slices.SortStableFunc(want, func(a, b tableRoute) int { return b.kind - a.kind }) // unreachable and throw first
	seen := map[tableRoute]netlink.Route{}
	for _, r := range have {
		seen[tableRouteOf(family, r)] = r
	}
	for _, w := range want {
		if _, ok := seen[w]; ok {
			delete(seen, w)
			continue
		}
		r := &netlink.Route{LinkIndex: w.index, Dst: netOf(w.dst), Type: w.kind, Table: table, Priority: w.metric, Protocol: RouteProtocol, Family: family}
		if family == netlink.FAMILY_V4 && w.kind == unix.RTN_UNICAST {
			r.Scope = netlink.SCOPE_LINK
		}
		err := netlink.RouteAdd(r)
		if family == netlink.FAMILY_V6 && isIPv6Off(err) {
			continue // of an interface without IPv6
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the route to %v: %w", w.dst, advice(err))
		}
	}
	for x, r := range seen {
		if err := netlink.RouteDel(&r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route to %v: %w", x.dst, advice(err))
		}
	}
	if len(want) > 0 && len(rules) == 0 {
		mask := uint32(MarkMask)
		r := netlink.NewRule()
		r.Priority, r.Table, r.Family, r.Protocol = routesPriority, table, family, RouteProtocol
		r.Mark, r.Mask, r.Invert = Mark, &mask, true
		if err := netlink.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add the rule for table %d: %w", table, advice(err))
		}
	}
	return nil
}

func tableRouteOf(family int, r netlink.Route) tableRoute {
	x := tableRoute{kind: r.Type, metric: r.Priority, dst: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}
	if family == netlink.FAMILY_V6 {
		x.dst = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if p, ok := prefixOf(r.Dst); ok {
		x.dst = p
	}
	if r.Type == unix.RTN_UNICAST {
		x.index = r.LinkIndex
	}
	if family == netlink.FAMILY_V6 && x.metric == 1024 { // what IPv6 makes of none
		x.metric = 0
	}
	return x
}

// rulesTo lists the rules that lead to a table of ours.
func rulesTo(table, family int) (out []netlink.Rule, err error) {
	rules, err := dump(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
	if err != nil {
		return nil, fmt.Errorf("list the rules: %w", err)
	}
	for _, r := range rules {
		if r.Table == table && r.Priority == routesPriority {
			r.Family = family
			out = append(out, r)
		}
	}
	return out, nil
}

// exitInForce tells whether some network of this machine has an exit.
func exitInForce() bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	return err == nil && slices.ContainsFunc(tables, func(t *nftables.Table) bool {
		return strings.HasPrefix(t.Name, nftPrefix) && strings.HasSuffix(t.Name, exitSuffix)
	})
}

const exitSuffix = "-exit"

func exitTable(name string) string { return nftPrefix + name + exitSuffix }

// closeLeaks has, with an exit, nftables drop what would leave past the overlay all the same. Routes alone do not do it: for a
// socket that is bound to an interface Linux takes a destination without a route to be on that very link (ip_route_output_key). And
// the answers to weft's own packets get their mark, by which a strict reverse path filter (RFC 3704) finds the way that they came.
func closeLeaks(r OverlayRoutes, attached []netip.Prefix) error {
	if !r.Exit {
		return sentence(putBack(exitTable(r.Interface)), dropTable(exitTable(r.Interface)))
	}
	strict := strictReversePath()
	var want []setting
	if strict {
		want = []setting{{"net/ipv4/conf/all/src_valid_mark", "1"}}
	}
	notes := toNote(exitTable(r.Interface), want)
	err := replaceTable(exitTable(r.Interface), func(t *nftTable) {
		t.note(notes)
		out := t.chain("output", nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter)
		// A gateway that was given without its interface may be looked up through the overlay, and weft's packets then with it: each
		// would come back as two.
		t.rule(out, nftOut(r.Interface, true), nftMark(Mark, MarkMask, true), nftDrop())
		t.rule(out, nftOut(r.Interface, true), nftAccept())
		t.rule(out, nftOut("lo", true), nftAccept())
		t.rule(out, nftMark(Mark, MarkMask, true), nftAccept())
		t.rule(out, nftMark(PortalMark, PortalMark, true), nftAccept())
		r.closeNames(t, out)
		for _, p := range r.apart(attached) {
			t.rule(out, nftTo(p), nftAccept())
		}
		t.rule(out, nftFamily(true), nftSourcePort(unix.IPPROTO_UDP, 68), nftPort(unix.IPPROTO_UDP, 67), nftAccept()) // a lease that is renewed (RFC 2131)
		for kind := byte(133); kind <= 136; kind++ {                                                                  // neighbours and routers found (RFC 4861)
			t.rule(out, nftFamily(false), nftICMPv6(kind), nftAccept())
		}
		t.rule(out, nftDrop())
		if strict {
			post := t.chain("out", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, nftables.ChainPriorityMangle)
			t.rule(post, nftMark(Mark, MarkMask, true), nftSetCtMark(Mark, MarkMask))
			in := t.chain("in", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle)
			t.rule(in, nftCtMark(Mark, MarkMask), nftSetMark(Mark, MarkMask))
		}
	})
	if err != nil {
		return err
	}
	return change(notes)
}

// closeNames keeps questions for names from who is asked nearby, be it by a link-local address: the C library goes on to the next
// server of its list when the first is silent, and systemd-resolved asks whoever a lease says is right for a domain.
func (r OverlayRoutes) closeNames(t *nftTable, chain *nftables.Chain) {
	protocols := []uint8{unix.IPPROTO_UDP, unix.IPPROTO_TCP}
	ports := []uint16{53, 853} // RFC 1035, RFC 7858 and RFC 9250
	if r.LAN {
		for _, a := range r.Resolvers {
			for _, proto := range protocols {
				t.rule(chain, nftTo(netip.PrefixFrom(a.Addr(), a.Addr().BitLen())), nftPort(proto, a.Port()), nftAccept())
			}
		}
	} else {
		ports = append(ports, 5353, 5355) // neighbours asked by multicast: RFC 6762, RFC 4795
	}
	for _, port := range ports {
		for _, proto := range protocols {
			t.rule(chain, nftPort(proto, port), nftDrop())
		}
	}
}

// strictReversePath tells whether some interface drops what comes by another way than answers would go.
func strictReversePath() bool {
	values, _ := filepath.Glob(filepath.Join(sysctls, "net/ipv4/conf/*/rp_filter"))
	return slices.ContainsFunc(values, func(path string) bool { return filtersStrictly(strings.TrimPrefix(path, sysctls)) })
}
