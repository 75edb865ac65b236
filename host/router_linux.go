package host

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What a router passes on is judged in a table of nftables of its own, before the kernel is told to pass anything on. From
// the overlay: to the networks behind the router and nowhere else. Towards it: answers, and where Enter says so what those networks
// begin, from their own addresses. Between interfaces that have nothing to do with the overlay nothing is passed on that was
// not before: where weft is who switched forwarding on, that is dropped (the guard).
const (
	// LinkGroup is the group (ip-link(8)) of the overlay's interfaces, of whichever daemon: by it guards know what is not
	// theirs to stop.
	LinkGroup = 87
	// masqueradeMark is a bit of the mark of a packet that is to leave under this machine's own address.
	masqueradeMark = 0x08000000
)

// guards are the names of the chains that stop what is nobody's, of IPv4 and IPv6. That such a chain exists says that weft
// switched forwarding on, to whoever comes after.
var guards = map[bool]string{true: "guard4", false: "guard6"}

func routerTable(name string) string { return nftPrefix + name }

// SetRouter makes this machine pass on what r says, and no more.
func SetRouter(r Router) error {
	four, six := r.has(true), r.has(false)
	guard4, guard6 := four && weftForwards(true), six && weftForwards(false)
	table := routerTable(r.Interface)
	ours := func(t string) bool { return t == table }
	was4, was6 := guarded(true, ours), guarded(false, ours)
	var heard []changed
	if guard6 {
		heard = toNote(table, hearing())
	} else if err := putBack(table); err != nil {
		return err
	}
	err := replaceTable(table, func(t *nftTable) {
		r.build(t, guard4, guard6)
		t.note(heard)
	})
	_ = change(heard) // without: addresses are lost when they expire, which a person sees
	if err == nil && four {
		err = switchForwarding(true)
	}
	if err == nil && six {
		err = switchForwarding(false)
	}
	for v4, was := range map[bool]bool{true: was4 && !guard4, false: was6 && !guard6} { // networks of a family that are no more
		if err == nil && was && !guarded(v4, func(string) bool { return true }) {
			err = os.WriteFile(forwardSwitch(v4), []byte("0"), 0)
		}
	}
	if err != nil {
		return fmt.Errorf("pass packets on between %s and the networks behind this machine: %w", r.Interface, err)
	}
	return nil
}

// StopRouter takes back what SetRouter did for an interface of this name, also in a process that is no more.
func StopRouter(name string) error {
	if err := stopForwarding(routerTable(name)); err != nil {
		return fmt.Errorf("stop passing packets on behind %s: %w", name, err)
	}
	return nil
}

func (r Router) has(v4 bool) bool {
	return slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Addr().Is4() == v4 })
}

func (r Router) build(t *nftTable, guard4, guard6 bool) {
	out, in := t.jumped("out"), t.jumped("in")
	t.rule(out, nftFitMSS())
	pass := func(p netip.Prefix) {
		if r.Masquerade {
			t.rule(out, nftTo(p), nftSetMark(masqueradeMark, masqueradeMark), nftAccept())
		} else {
			t.rule(out, nftTo(p), nftAccept())
		}
	}
	t.rule(in, nftFitMSS())
	t.rule(in, nftKnown(), nftAccept())
	for _, p := range r.Networks {
		if p.Bits() == 0 {
			continue
		}
		pass(p)
		if r.Enter {
			t.rule(in, nftFrom(p), nftAccept())
		}
	}
	for _, any := range r.Networks {
		if any.Bits() != 0 {
			continue
		}
		for _, p := range slices.Concat(private, r.Overlay) {
			if p.Addr().Is4() == any.Addr().Is4() {
				t.rule(out, nftTo(p), nftDrop())
			}
		}
		pass(any)
	}
	t.rule(out, nftDrop())
	t.rule(in, nftDrop())

	forward := t.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	t.rule(forward, nftMark(PortalMark, PortalMark, true), nftAccept())
	within := nftDrop()
	if r.Within {
		within = nftAccept()
	}
	t.rule(forward, nftIn(r.Interface, true), nftOut(r.Interface, true), within)
	t.rule(forward, nftIn(r.Interface, true), nftJump(out))
	t.rule(forward, nftOut(r.Interface, true), nftJump(in))
	t.guard(forward, guard4, guard6)
	if r.Masquerade {
		nat := t.chain("masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
		t.rule(nat, nftMark(masqueradeMark, masqueradeMark, true), nftMasquerade())
	}
}

// guard has a forward chain stop what is nobody's, of the families for which weft switches forwarding on.
func (t *nftTable) guard(forward *nftables.Chain, four, six bool) {
	for v4, on := range map[bool]bool{true: four, false: six} {
		if !on {
			continue
		}
		stop := t.jumped(guards[v4])
		t.rule(stop, nftInGroup(LinkGroup, false), nftOutGroup(LinkGroup, false), nftMark(PortalMark, PortalMark, false), nftDrop())
		t.rule(forward, nftFamily(v4), nftJump(stop))
	}
}

// forwardSwitch is what has the kernel pass packets on, for all interfaces.
func forwardSwitch(v4 bool) string {
	if v4 {
		return "/proc/sys/net/ipv4/ip_forward"
	}
	return "/proc/sys/net/ipv6/conf/all/forwarding"
}

// weftForwards tells whether it is weft, now or already, that has the kernel forward: whoever is told so puts up a guard
// before switchForwarding.
func weftForwards(v4 bool) bool {
	b, err := os.ReadFile(forwardSwitch(v4))
	return err == nil && strings.TrimSpace(string(b)) == "0" || guarded(v4, func(string) bool { return true })
}

// guarded tells whether there is a guard in a table that is ours and wanted.
func guarded(v4 bool, wanted func(table string) bool) bool {
	c, err := nftables.New()
	if err != nil {
		return false
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	return err == nil && slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return c.Name == guards[v4] && c.Table != nil && strings.HasPrefix(c.Table.Name, nftPrefix) && wanted(c.Table.Name)
	})
}

// hearing is what has interfaces that have their addresses by router advertisements go on hearing them when IPv6 forwarding is switched
// on: a forwarding host does not otherwise (accept_ra in ip-sysctl).
func hearing() (out []setting) {
	if readSetting("net/ipv6/conf/all/forwarding") != "0" {
		return nil
	}
	conf, _ := filepath.Glob(filepath.Join(sysctls, "net/ipv6/conf/*/accept_ra"))
	for _, f := range conf {
		if path := strings.TrimPrefix(f, sysctls); readSetting(path) == "1" {
			out = append(out, setting{path, "2"})
		}
	}
	return out
}

// switchForwarding has the kernel pass packets on.
func switchForwarding(v4 bool) error {
	path := forwardSwitch(v4)
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("this kernel has no %s: %w", strings.TrimPrefix(path, "/proc/sys/"), err)
	}
	if strings.TrimSpace(string(b)) != "0" {
		return nil
	}
	if err := os.WriteFile(path, []byte("1"), 0); err != nil {
		return fmt.Errorf("switch forwarding on: %w (set %s to 1 by hand, before weft is started)", err, strings.TrimPrefix(path, "/proc/sys/"))
	}
	return nil
}

// stopForwarding drops a table, and switches off first what weft alone had switched on for it. What was changed so that it could be
// switched on is put back.
func stopForwarding(table string) error {
	var errs []error
	for _, v4 := range []bool{true, false} {
		if !guarded(v4, func(t string) bool { return t == table }) || guarded(v4, func(t string) bool { return t != table }) {
			continue
		}
		if err := os.WriteFile(forwardSwitch(v4), []byte("0"), 0); err != nil {
			errs = append(errs, fmt.Errorf("switch forwarding off: %w", err))
		}
	}
	return sentence(append(errs, putBack(table), dropTable(table))...)
}

// joinGroup puts a link into LinkGroup.
func joinGroup(link netlink.Link) error {
	if link.Attrs().Group == LinkGroup {
		return nil
	}
	if err := netlink.LinkSetGroup(link, LinkGroup); err != nil && err != unix.EOPNOTSUPP {
		return fmt.Errorf("put it into the group %d: %w", LinkGroup, advice(err))
	}
	return nil
}
