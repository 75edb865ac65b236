//go:build linux

package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func prefixes(s ...string) []netip.Prefix {
	out := make([]netip.Prefix, len(s))
	for i := range s {
		out[i] = netip.MustParsePrefix(s[i])
	}
	return out
}

// addressesOf and routesOf are what the kernel says, IPv6 link-local aside.
func addressesOf(t *testing.T, l netlink.Link) []string {
	t.Helper()
	list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, a := range list {
		if !a.IP.IsLinkLocalUnicast() {
			out = append(out, a.IPNet.String())
		}
	}
	slices.Sort(out)
	return out
}

func routesOf(t *testing.T, l netlink.Link) []string {
	t.Helper()
	var out []string
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: l.Attrs().Index, Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if s := r.Dst.String(); !strings.HasPrefix(s, "fe80:") && !strings.HasPrefix(s, "ff00:") {
				out = append(out, s)
			}
		}
	}
	slices.Sort(out)
	return out
}

func TestALinkGetsExactlyTheAddressesAndRoutesItShouldHave(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "weft0")

	check := func(mtu int, addrs, routes []string) {
		t.Helper()
		now, err := netlink.LinkByName("weft0")
		if err != nil {
			t.Fatal(err)
		}
		if now.Attrs().MTU != mtu {
			t.Errorf("MTU is %d, want %d", now.Attrs().MTU, mtu)
		}
		if now.Attrs().RawFlags&unix.IFF_UP == 0 {
			t.Error("the link is down")
		}
		if diff := cmp.Diff(addrs, addressesOf(t, l)); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(routes, routesOf(t, l)); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
	}

	err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), prefixes("100.64.0.0/10", "fd7a::/48"), 1280)
	if err != nil {
		t.Fatal(err)
	}
	check(1280, []string{"100.64.0.7/32", "fd7a::7/128"}, []string{"100.64.0.0/10", "fd7a::/48"})

	// Another address, another range, a route of ours gone and one more. The
	// last IPv4 address changes, with which the kernel would take all IPv4 routes
	// along.
	err = ConfigureLink("weft0", prefixes("100.64.0.8/32", "fd7b::7/128"), prefixes("100.64.0.0/10", "10.9.0.0/16", "fd7b::/48"), 1400)
	if err != nil {
		t.Fatal(err)
	}
	check(1400, []string{"100.64.0.8/32", "fd7b::7/128"}, []string{"10.9.0.0/16", "100.64.0.0/10", "fd7b::/48"})

	// 0 leaves the MTU; an address in a wider prefix brings no route of its own.
	err = ConfigureLink("weft0", prefixes("10.0.0.10/16"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	check(1400, []string{"10.0.0.10/16"}, nil)
	// The kernel drops the secondary of a subnet with its primary.
	err = ConfigureLink("weft0", prefixes("10.0.0.11/16"), prefixes("10.0.0.0/16"), 0)
	if err != nil {
		t.Fatal(err)
	}
	check(1400, []string{"10.0.0.11/16"}, []string{"10.0.0.0/16"})
}

func TestConfiguringALinkTwiceChangesNothingTheSecondTime(t *testing.T) {
	inNetworkNamespace(t)
	newTUN(t, "weft0")
	configure := func() {
		t.Helper()
		if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"),
			prefixes("100.64.0.0/10", "fd7a::/48"), 1280); err != nil {
			t.Fatal(err)
		}
	}
	configure()
	// Any attempt to change something would now be refused.
	withoutCapability(t, unix.CAP_NET_ADMIN)
	configure()
}

func TestRoutesAndAddressesOfOthersAreLeftAlone(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "weft0")
	other := newTUN(t, "eth9")
	if err := netlink.LinkSetUp(other); err != nil {
		t.Fatal(err)
	}
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), prefixes("100.64.0.0/10"), 0); err != nil {
		t.Fatal(err)
	}
	byHand := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netOf(prefixes("192.0.2.0/24")[0]), Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(byHand); err != nil {
		t.Fatal(err)
	}
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), nil, 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"192.0.2.0/24"}, routesOf(t, l)); diff != "" {
		t.Errorf("routes after ours went (-want +got):\n%s", diff)
	}

	// The range of the overlay is in use on another interface.
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: other.Attrs().Index, Dst: netOf(prefixes("100.64.0.0/10")[0]),
		Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), prefixes("100.64.0.0/10"), 0)
	if err == nil || !strings.Contains(err.Error(), "another interface") {
		t.Errorf("a range that is taken: got %v", err)
	}
	if diff := cmp.Diff([]string{"100.64.0.0/10"}, routesOf(t, other)); diff != "" {
		t.Errorf("routes of the other interface (-want +got):\n%s", diff)
	}
}

func TestAnOverlayAddressCanBeBoundTheMomentItIsThere(t *testing.T) {
	inNetworkNamespace(t)
	newTUN(t, "weft0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), nil, 0); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"100.64.0.7:53", "[fd7a::7]:53"} {
		c, err := net.ListenPacket("udp", a)
		if err != nil {
			t.Errorf("bind %s: %v", a, err)
			continue
		}
		c.Close()
	}
}

func TestWithIPv6SwitchedOffTheIPv4PartIsDone(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "weft0")
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/weft0/disable_ipv6", []byte("1"), 0); err != nil {
		t.Skipf("needs to switch IPv6 off in a namespace: %v", err)
	}
	err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), prefixes("100.64.0.0/10", "fd7a::/48"), 1280)
	if !errors.Is(err, ErrIPv6Disabled) {
		t.Errorf("got %v, want ErrIPv6Disabled", err)
	}
	if diff := cmp.Diff([]string{"100.64.0.7/32"}, addressesOf(t, l)); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"100.64.0.0/10"}, routesOf(t, l)); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func TestALinkThatCannotBeConfiguredIsReportedInASentence(t *testing.T) {
	inNetworkNamespace(t)
	newTUN(t, "weft0")
	for _, tc := range []struct {
		name  string
		addrs []netip.Prefix
		mtu   int
		want  string
	}{
		{"weft9", nil, 1280, "configure weft9: there is no such interface"},
		{"weft0", prefixes("fd7a::7/128"), 1000, "set at least 1280"},
		{"weft0", make([]netip.Prefix, 1), 1280, "is not an address"},
	} {
		err := ConfigureLink(tc.name, tc.addrs, nil, tc.mtu)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("ConfigureLink(%s, %v, MTU %d) = %v, want it to say %q", tc.name, tc.addrs, tc.mtu, err, tc.want)
		}
	}
	withoutCapability(t, unix.CAP_NET_ADMIN)
	err := ConfigureLink("weft0", prefixes("100.64.0.7/32"), nil, 0)
	if err == nil || !strings.Contains(err.Error(), "run as root") {
		t.Errorf("without permission: %v", err)
	}
}

// withoutCapability takes a capability from the thread of the test.
func withoutCapability(t *testing.T, capability uint) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	data[capability/32].Effective &^= 1 << (capability % 32)
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
}

func TestTheProbeForTUNSaysWhatIsMissing(t *testing.T) {
	inNetworkNamespace(t)
	if err := checkTUN(t.TempDir() + "/tun"); err == nil || !strings.Contains(err.Error(), "modprobe tun") {
		t.Errorf("without the device: %v", err)
	}
	if err := checkTUN("/dev/null"); err == nil {
		t.Error("a device that is no TUN was taken for one")
	}
	newTUN(t, "weft0") // skips where there is none
	if err := CheckTUN(); err != nil {
		t.Errorf("where one was just created: %v", err)
	}
	if links, err := netlink.LinkList(); err != nil || len(links) != 2 {
		t.Errorf("the probe left something: %v, %v", links, err)
	}
	withoutCapability(t, unix.CAP_NET_ADMIN)
	err := CheckTUN()
	if err == nil || !strings.Contains(err.Error(), "--userspace") || !errors.Is(err, os.ErrPermission) {
		t.Errorf("without permission: %v", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("not one sentence: %q", err)
	}
}

func TestCandidatesComeFromAddressesThatPacketsCanBeSentFrom(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "eth9")
	add := func(s string, flags, preferred int) {
		t.Helper()
		a := &netlink.Addr{IPNet: netOf(prefixes(s)[0]), Flags: flags}
		if preferred >= 0 {
			a.ValidLft, a.PreferedLft = 3600, preferred
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatalf("add %s: %v", s, err)
		}
	}
	add("192.0.2.2/24", 0, -1)
	add("2001:db8::2/64", unix.IFA_F_NODAD, -1)
	add("2001:db8::3/64", unix.IFA_F_NODAD, 0) // deprecated
	add("fe80::2/64", unix.IFA_F_NODAD, -1)

	find := func(name string) Interface {
		t.Helper()
		list, err := Interfaces()
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(i Interface) bool { return i.Name == name })
		if i < 0 {
			t.Fatalf("%s is not in %v", name, list)
		}
		return list[i]
	}
	if find("eth9").Up {
		t.Error("down, and listed as up")
	}
	if lo := find("lo"); !lo.Loopback || lo.Up || lo.PointToPoint {
		t.Errorf("loopback: %+v", lo)
	}
	want := Interface{Index: l.Attrs().Index, Name: "eth9", MTU: 1500, PointToPoint: true, Addrs: prefixes("192.0.2.2/24", "2001:db8::2/64")}
	got := find("eth9")
	slices.SortFunc(got.Addrs, netip.Prefix.Compare)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("interface (-want +got):\n%s", diff)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	if !find("eth9").Up {
		t.Error("up, and listed as down")
	}
	for s, want := range map[string]bool{"weft0": false, "eth9": true, "a-name-that-is-too-long-for-linux": false} {
		if got, err := LinkExists(s); got != want || err != nil {
			t.Errorf("LinkExists(%s) = %v, %v", s, got, err)
		}
	}
}

func TestAnAddressInDuplicateDetectionIsNoCandidateUnlessOptimistic(t *testing.T) {
	for _, tc := range []struct {
		addr  string
		flags int
		want  bool
	}{
		{"2001:db8::1", 0, true},
		{"2001:db8::1", unix.IFA_F_TEMPORARY, true},
		{"2001:db8::1", unix.IFA_F_TENTATIVE, false},
		{"2001:db8::1", unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC, true},
		{"2001:db8::1", unix.IFA_F_DADFAILED, false},
		{"2001:db8::1", unix.IFA_F_DEPRECATED | unix.IFA_F_TEMPORARY, false},
		{"fe80::1", 0, false},
		{"192.0.2.1", 0, true},
		{"192.0.2.1", unix.IFA_F_DEPRECATED, true},
	} {
		if got := canSendFrom(netip.MustParseAddr(tc.addr), tc.flags); got != tc.want {
			t.Errorf("%s with flags %#x: %v, want %v", tc.addr, tc.flags, got, tc.want)
		}
	}
}

func TestTheDefaultRouteIsTheOneWithTheLowestMetricThatIsUp(t *testing.T) {
	inNetworkNamespace(t)
	a, b := newTUN(t, "eth1"), newTUN(t, "eth2")
	for _, l := range []netlink.Link{a, b} {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if got, ok := DefaultRoute(); got != want || ok != (want != "") {
			t.Errorf("default route by %q (%v), want %q", got, ok, want)
		}
	}
	add := func(l netlink.Link, dst string, metric int) {
		t.Helper()
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netOf(prefixes(dst)[0]), Priority: metric}
		if r.Dst.IP.To4() != nil {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	expect("")
	add(a, "::/0", 10)
	expect("eth1")
	add(b, "0.0.0.0/0", 600)
	expect("eth2")
	add(a, "0.0.0.0/0", 100)
	expect("eth1")
	if err := netlink.LinkSetDown(a); err != nil {
		t.Fatal(err)
	}
	expect("eth2")
}

func TestABurstOfChangesIsToldAtOnceAndThenAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		notices := coalesced(ctx, changed)
		start := time.Now()
		expect := func(n int) {
			t.Helper()
			if len(notices) != n {
				t.Errorf("%d notices after %v, want %d", len(notices), time.Since(start), n)
			}
		}
		notify(changed)
		synctest.Wait()
		expect(1) // the first is told at once
		<-notices
		for range 20 { // nearly all of an interval
			notify(changed)
			time.Sleep(coalesce / 21)
		}
		synctest.Wait()
		expect(0)
		time.Sleep(coalesce)
		synctest.Wait()
		expect(1)
		<-notices
		time.Sleep(time.Hour)
		expect(0)
		// Nobody takes the notices: later changes are covered by the one there is.
		for range 3 {
			notify(changed)
			time.Sleep(2 * coalesce)
			synctest.Wait()
			expect(1)
		}
		<-notices
		notify(changed)
		synctest.Wait()
		expect(1)
		<-notices
		notify(changed) // within the interval
		synctest.Wait()
		cancel()
		synctest.Wait()
		if _, open := <-notices; open {
			t.Error("the channel stays open after the end of the context")
		}
		close(changed)
	})
}

func TestAnInterfaceThatGoesOrComesIsToldWithinMilliseconds(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "eth9")
	carriers, err := WatchCarriers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	told := func(what string, up bool) {
		t.Helper()
		began := time.Now()
		for deadline := time.After(5 * time.Second); ; {
			select {
			case c := <-carriers:
				if c.Index == l.Attrs().Index && c.Up == up {
					t.Logf("%s: told after %v", what, time.Since(began))
					return
				}
			case <-deadline:
				t.Fatalf("%s: nobody says so", what)
			}
		}
	}
	for range 3 {
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		told("it comes", true)
		if err := netlink.LinkSetDown(l); err != nil {
			t.Fatal(err)
		}
		told("it goes", false)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	told("it comes", true)
	if err := netlink.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	told("it is taken away", false)
}

func TestLinksAddressesAndRoutesAreWatched(t *testing.T) {
	inNetworkNamespace(t)
	l := newTUN(t, "eth9")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	notices, err := WatchLinks(ctx)
	if err != nil {
		t.Fatal(err)
	}
	route := func(dst string) *netlink.Route {
		return &netlink.Route{LinkIndex: l.Attrs().Index, Dst: netOf(prefixes(dst)[0])}
	}
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"a link comes up", func() error { return netlink.LinkSetUp(l) }},
		{"an IPv4 address", func() error { return netlink.AddrAdd(l, &netlink.Addr{IPNet: netOf(prefixes("192.0.2.1/24")[0])}) }},
		{"an IPv6 address", func() error { return netlink.AddrAdd(l, &netlink.Addr{IPNet: netOf(prefixes("2001:db8::1/64")[0])}) }},
		{"an IPv4 route", func() error { return netlink.RouteAdd(route("10.0.0.0/8")) }},
		{"an IPv6 route", func() error { return netlink.RouteAdd(route("2001:db8:1::/48")) }},
		{"a route goes", func() error { return netlink.RouteDel(route("2001:db8:1::/48")) }},
		{"a link goes down", func() error { return netlink.LinkSetDown(l) }},
	} {
		// What the kernel does of its own accord with the last change passes first.
		for within(2*coalesce, notices) {
		}
		if err := change.make(); err != nil {
			t.Fatalf("%s: %v", change.name, err)
		}
		if !within(5*time.Second, notices) {
			t.Errorf("%s: no notice", change.name)
		}
	}
	cancel()
	deadline := time.After(5 * time.Second)
	for {
		select {
		case _, open := <-notices:
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the channel stays open after the end of the context")
		}
	}
}
