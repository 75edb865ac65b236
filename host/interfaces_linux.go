package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// coalesce is how long WatchLinks collects changes after a notice before the
	// next. One cable or one DHCP lease is a burst of 5 to 20 messages within some
	// 100 ms: three notices, and the last of them, with the route, is not late.
	coalesce = 50 * time.Millisecond

	// dumpTries bounds how often a listing is repeated that the kernel marked
	// as inconsistent (NLM_F_DUMP_INTR) because the tables changed meanwhile.
	dumpTries = 5
)

// Interfaces lists the network interfaces of this network namespace, in the
// order of their index.
func Interfaces() ([]Interface, error) {
	links, err := dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of network interfaces: %w", err)
	}
	usable := make(map[int][]netip.Prefix)
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok && canSendFrom(p.Addr(), a.Flags) {
			usable[a.LinkIndex] = append(usable[a.LinkIndex], p)
		}
	}
	out := make([]Interface, 0, len(links))
	for _, l := range links {
		at := l.Attrs()
		out = append(out, Interface{
			Index:        at.Index,
			Name:         at.Name,
			MTU:          at.MTU,
			Up:           isUp(at.RawFlags),
			Loopback:     at.RawFlags&unix.IFF_LOOPBACK != 0,
			PointToPoint: at.RawFlags&unix.IFF_POINTOPOINT != 0,
			Addrs:        usable[at.Index],
		})
	}
	slices.SortFunc(out, func(a, b Interface) int { return a.Index - b.Index })
	return out, nil
}

// canSendFrom reports whether an address with these IFA_F_ flags is worth being
// told to a peer.
func canSendFrom(a netip.Addr, flags int) bool {
	if a.Is4() {
		return true
	}
	switch {
	case a.IsLinkLocalUnicast():
		return false // means nothing without a zone, and the zone is ours alone
	case flags&(unix.IFA_F_DADFAILED|unix.IFA_F_DEPRECATED) != 0:
		return false
	case flags&unix.IFA_F_TENTATIVE != 0:
		return flags&unix.IFA_F_OPTIMISTIC != 0 // RFC 4429: may be used meanwhile
	}
	return true
}

// LinkExists reports whether there is an interface of this name.
func LinkExists(name string) (bool, error) {
	_, err := netlink.LinkByName(name)
	switch {
	case err == nil:
		return true, nil
	case isLinkNotFound(err):
		return false, nil
	}
	return false, fmt.Errorf("look for interface %s: %w", name, err)
}

// DefaultRoute is the interface that packets for the rest of the world leave by:
// the IPv4 default route of the main table with the lowest metric, or the
// IPv6 one on a machine without the former.
func DefaultRoute() (ifname string, ok bool) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			continue
		}
		index, best := 0, 0
		for _, r := range routes {
			i, up := leavesBy(r)
			if up && isDefault(r) && (index == 0 || r.Priority < best) {
				index, best = i, r.Priority
			}
		}
		if index == 0 {
			continue
		}
		if l, err := netlink.LinkByIndex(index); err == nil {
			return l.Attrs().Name, true
		}
	}
	return "", false
}

func isDefault(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// leavesBy is the interface of a route, for a multipath route that of the first
// next hop that is up.
func leavesBy(r netlink.Route) (index int, up bool) {
	const down = unix.RTNH_F_DEAD | unix.RTNH_F_LINKDOWN
	if r.LinkIndex != 0 {
		return r.LinkIndex, r.Flags&down == 0
	}
	for _, hop := range r.MultiPath {
		if hop.Flags&down == 0 {
			return hop.LinkIndex, true
		}
	}
	return 0, false
}

// WatchLinks says when links, addresses or routes of this network namespace
// changed: at once, and then every 50 ms as long as they go on changing. A notice
// that nobody has taken yet stands for later ones too: after each change there is
// at least one notice. The channel is closed when ctx ends, or when the kernel's
// notices cannot be read any more (which is logged).
func WatchLinks(ctx context.Context) (<-chan struct{}, error) {
	changed := make(chan struct{}, 1)
	take := func(msgs []syscall.NetlinkMessage) {
		if msgs == nil || slices.ContainsFunc(msgs, isChange) { // which were dropped does not matter
			notify(changed)
		}
	}
	err := notices(ctx, "changes of network interfaces will not be noticed any more", take, func() { close(changed) },
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return nil, err
	}
	return coalesced(ctx, changed), nil
}

// coalesced passes notices on: the first of a burst at once, and the others as
// one at intervals. Its channel closes after the one it reads from, or when ctx
// ends.
func coalesced(ctx context.Context, changed <-chan struct{}) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		for range changed {
			notify(out)
			wait := time.NewTimer(coalesce)
			select {
			case <-ctx.Done():
				wait.Stop()
				return
			case <-wait.C: // what came meanwhile lies in changed, as one
			}
		}
	}()
	return out
}

// notify leaves a notice in a channel of capacity 1 unless one lies there.
func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// isChange keeps out what the kernel says about its route cache (IPv6 path MTU
// exceptions, for one): those come with traffic, not with changes.
func isChange(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return false
		}
		return nl.DeserializeRtMsg(m.Data).Flags&unix.RTM_F_CLONED == 0
	}
	return true
}

// dump repeats a netlink listing that was interrupted by a change of what it
// lists. A table that never holds still is taken as it was seen last.
func dump[T any](list func() ([]T, error)) ([]T, error) {
	for try := 1; ; try++ {
		out, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return out, err
		}
		if try == dumpTries {
			return out, nil
		}
	}
}

func isLinkNotFound(err error) bool {
	_, ok := errors.AsType[netlink.LinkNotFoundError](err)
	return ok || errors.Is(err, unix.ENODEV)
}

func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, bits := n.Mask.Size()
	if a = a.Unmap(); a.Is4() && bits == 128 {
		ones -= 96
	}
	p := netip.PrefixFrom(a, ones)
	return p, p.IsValid()
}

func netOf(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
