package host

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// forwardPriority is of our policy rule; the one behind it has the next. Rules without a number of their own
	// begin below the main table's 32766, what others give is far from 5187 (ip-rule(8)).
	forwardPriority = 5187

	// forwardTable + the link's index is the routing table of what comes in by the link. Tables above 255 are for
	// whoever takes one; 87 is 'W'.
	forwardTable = 87 << 16
)

// ForwardWithin has the kernel pass on what comes in by a link to the same link, for destinations in these ranges, and
// drop what comes in by it for anywhere else but this machine. Of other links nothing changes: neither is what comes in
// by them passed on to this one, nor are they reached from it.
//
// With beyond, what comes in for anywhere else is not dropped here: a router's rules judge it (SetRouter).
//
// The rules are in place before forwarding is switched on. A kernel that cannot forward IPv6 for one link alone is told to for
// all, behind a guard that drops what the machine did not pass on before. Where that cannot be, the IPv4 part is done all the same
// and the error is ErrForwardIPv6.
func ForwardWithin(name string, ranges []netip.Prefix, beyond bool) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("forward within %s: look it up: %w", name, err)
	}
	if err := dropRules(name); err != nil { // of an earlier interface of that name: with another table
		return fmt.Errorf("forward within %s: %w", name, err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if family == netlink.FAMILY_V6 && !hasIPv6(name) {
			continue
		}
		if err := addRules(link, family, ranges, beyond); err != nil {
			return fmt.Errorf("forward within %s: %w", name, err)
		}
	}
	if err := set(setting{settingPath("net/ipv4/conf", name, "forwarding"), "1"}); err != nil {
		return fmt.Errorf("forward within %s: %w", name, err)
	}
	if !hasIPv6(name) {
		return nil
	}
	err = set(setting{settingPath("net/ipv6/conf", name, forwardOne), "1"})
	if errors.Is(err, fs.ErrNotExist) {
		if err = forwardGuarded(name, beyond); err != nil {
			return fmt.Errorf("%w: %w", ErrForwardIPv6, err)
		}
	}
	if err != nil {
		return fmt.Errorf("forward within %s: %w", name, err)
	}
	return nil
}

// forwardOne has the kernel forward IPv6 for one interface alone, from Linux 6.17 on. Tests make it a name that no kernel knows.
var forwardOne = "force_forwarding"

// withinTable is the table of a link for which IPv6 is forwarded for all.
func withinTable(name string) string { return nftPrefix + name + "-within" }

// forwardGuarded has the kernel forward IPv6 for all interfaces, and drops what that is not for: between others, and, unless beyond,
// between the link and others. Where somebody else had it forward before, nothing is changed.
func forwardGuarded(name string, beyond bool) error {
	if !weftForwards(false) {
		return nil
	}
	heard := toNote(withinTable(name), hearing())
	err := replaceTable(withinTable(name), func(t *nftTable) {
		t.note(heard)
		forward := t.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
		t.rule(forward, nftMark(PortalMark, PortalMark, true), nftAccept())
		if !beyond {
			t.rule(forward, nftFamily(false), nftIn(name, true), nftOut(name, false), nftDrop())
			t.rule(forward, nftFamily(false), nftIn(name, false), nftOut(name, true), nftDrop())
		}
		t.guard(forward, false, true)
	})
	if err != nil {
		return err
	}
	_ = change(heard) // without: addresses are lost when they expire, which a person sees
	return switchForwarding(false)
}

// StopForwarding takes back what ForwardWithin did. A link that is gone has left its rules only.
func StopForwarding(name string) error {
	var errs []error
	for _, path := range []string{settingPath("net/ipv4/conf", name, "forwarding"), settingPath("net/ipv6/conf", name, forwardOne)} {
		if err := writeSetting(setting{path, "0"}); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(append(errs, stopForwarding(withinTable(name)), dropRules(name))...); err != nil {
		return fmt.Errorf("stop forwarding within %s: %w", name, err)
	}
	return nil
}

func hasIPv6(name string) bool {
	_, err := os.Stat(filepath.Join("/proc/sys/net/ipv6/conf", name))
	return err == nil
}

// addRules makes the table and the rules of one family: what comes in by the link looks there, and then, unless beyond, nowhere.
func addRules(link netlink.Link, family int, ranges []netip.Prefix, beyond bool) error {
	at := link.Attrs()
	table := forwardTable + at.Index
	for _, p := range ranges {
		if p = unmap(p).Masked(); p.Addr().Is4() != (family == netlink.FAMILY_V4) {
			continue
		}
		r := &netlink.Route{LinkIndex: at.Index, Dst: netOf(p), Table: table, Protocol: RouteProtocol, Family: family}
		if family == netlink.FAMILY_V4 {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteReplace(r); err != nil {
			return fmt.Errorf("add a route to %v for what comes in by it: %w", p, advice(err))
		}
	}
	look, stop := netlink.NewRule(), netlink.NewRule()
	look.Priority, look.Table = forwardPriority, table
	stop.Priority, stop.Type = forwardPriority+1, unix.RTN_UNREACHABLE
	list := []*netlink.Rule{look, stop}
	if beyond {
		list = list[:1]
	}
	for _, r := range list {
		r.Family, r.IifName, r.Protocol = family, at.Name, RouteProtocol
		if err := netlink.RuleAdd(r); err != nil {
			return fmt.Errorf("add a rule for what comes in by it: %w", advice(err))
		}
	}
	return nil
}

// dropRules removes our rules of a link. The routes go with the link, or are replaced.
func dropRules(name string) error {
	rules, err := netlink.RuleList(netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list the rules: %w", err)
	}
	for _, r := range slices.Backward(rules) {
		if r.IifName != name || r.Protocol != RouteProtocol || r.Priority != forwardPriority && r.Priority != forwardPriority+1 {
			continue
		}
		if err := netlink.RuleDel(&r); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove a rule: %w", advice(err))
		}
	}
	return nil
}
