package host

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// leaves tells by which interface a packet to an address leaves; "": it does not.
func leaves(t *testing.T, to string, mark uint32, device string) string {
	t.Helper()
	routes, err := netlink.RouteGetWithOptions(netip.MustParseAddr(to).AsSlice(), &netlink.RouteGetOptions{Mark: mark, Oif: device})
	if err != nil || len(routes) == 0 || routes[0].Type == unix.RTN_UNREACHABLE {
		return ""
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().Name
}

// sendBound sends a datagram by a socket that is bound to an interface. What nftables drops on its way out the kernel says (EPERM).
func sendBound(t *testing.T, device, to string, mark int) error {
	t.Helper()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		raw.Control(func(fd uintptr) {
			err = errors.Join(unix.BindToDevice(int(fd), device), unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark))
		})
		return err
	}}
	c, err := d.Dial("udp", net.JoinHostPort(to, "9"))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte{1})
	return err
}

func addRoute(t *testing.T, link netlink.Link, dst string) {
	t.Helper()
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: netOf(netip.MustParsePrefix(dst)), Protocol: 16}); err != nil { // RTPROT_DHCP
		t.Fatal(err)
	}
}

// exitWorld is a machine at a network with a way out, and an overlay.
func exitWorld(t *testing.T) (overlay, lan netlink.Link) {
	inNetworkNamespace(t)
	overlay, _ = openTUNPair(t, "weft0")
	lan, _ = openTUNPair(t, "lan0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), prefixes("100.64.0.0/10", "fd7a::/48"), 1400); err != nil {
		t.Fatal(err)
	}
	plainLink(t, lan, "192.168.1.20/24", "2001:db8:1::20/64")
	addRoute(t, lan, "0.0.0.0/0")
	addRoute(t, lan, "::/0")
	return overlay, lan
}

func TestWithAnExitNothingLeavesByRoutesThatTheNetworkHandsOut(t *testing.T) {
	_, lan := exitWorld(t)
	routes := OverlayRoutes{Interface: "weft0", Networks: prefixes("0.0.0.0/0", "::/0"), Exit: true}
	if _, err := SetOverlayRoutes(routes); err != nil {
		t.Fatal(err)
	}
	// CVE-2024-3661: a DHCP server's option 121, with routes more specific than any default.
	for _, r := range []string{"0.0.0.0/1", "128.0.0.0/1", "198.51.100.0/24", "203.0.113.7/32", "2000::/3"} {
		addRoute(t, lan, r)
	}
	all := []string{"198.51.100.9", "203.0.113.7", "9.9.9.9", "192.168.1.1", "10.1.2.3", "2001:db8:1::1", "2600::1", "169.254.169.254"}
	for _, to := range all {
		if got := leaves(t, to, 0, ""); got != "weft0" {
			t.Errorf("%s leaves by %q, want weft0", to, got)
		}
		if got := leaves(t, to, Mark, ""); got != "lan0" {
			t.Errorf("weft's own packets to %s leave by %q, want lan0", to, got)
		}
	}
	if got := leaves(t, "100.64.0.9", 0, ""); got != "weft0" {
		t.Errorf("a peer is reached by %q", got)
	}

	for _, to := range []string{"203.0.113.7", "2600::1"} {
		if err := sendBound(t, "lan0", to, 0); err == nil {
			t.Errorf("a program that is bound to lan0 sends to %s past the overlay", to)
		}
		if err := sendBound(t, "lan0", to, Mark); err != nil {
			t.Errorf("weft's own socket that is bound to lan0 does not send to %s: %v", to, err)
		}
	}

	if err := sendBound(t, "weft0", "203.0.113.7", 0); err != nil {
		t.Errorf("what goes into the overlay does not: %v", err)
	}
	if err := sendBound(t, "weft0", "203.0.113.7", Mark); err == nil {
		t.Error("weft's own packets go round through the overlay")
	}

	// The tunnel dies with its process: the interface goes, and nobody tidies up.
	link, err := netlink.LinkByName("weft0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	for _, to := range all {
		if got := leaves(t, to, 0, ""); got != "" {
			t.Errorf("without a tunnel %s leaves by %q, want nowhere", to, got)
		}
		if got := leaves(t, to, Mark, ""); got != "lan0" {
			t.Errorf("without a tunnel weft's own packets to %s leave by %q, want lan0", to, got)
		}
	}
	if err := ClearOverlayRoutes("weft0"); err != nil { // the next process, told that there is no exit now
		t.Fatal(err)
	}
	for _, to := range all {
		if got := leaves(t, to, 0, ""); got != "lan0" {
			t.Errorf("afterwards %s leaves by %q, want lan0", to, got)
		}
	}
}

func TestAnExitWithoutIPv6LeavesNoWayForIPv6(t *testing.T) {
	exitWorld(t)
	if _, err := SetOverlayRoutes(OverlayRoutes{Interface: "weft0", Networks: prefixes("0.0.0.0/0"), Exit: true}); err != nil {
		t.Fatal(err)
	}
	for to, want := range map[string]string{"9.9.9.9": "weft0", "2600::1": "", "2001:db8:1::1": "", "fd7a::9": ""} { // RFC 7359
		if got := leaves(t, to, 0, ""); got != want {
			t.Errorf("%s leaves by %q, want %q", to, got, want)
		}
	}
}

func TestTheLANStaysReachableByChoiceAndOnlyIfItIsPrivate(t *testing.T) {
	_, lan := exitWorld(t)
	plainLink(t, lan, "128.0.0.20/1") // a lease that calls half the internet the local network (CVE-2023-36672)
	attached, err := SetOverlayRoutes(OverlayRoutes{Interface: "weft0", Networks: prefixes("0.0.0.0/0", "::/0"), Exit: true, LAN: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(prefixes("192.168.1.0/24"), attached, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("networks that stay as they are (-want +got):\n%s", diff)
	}
	for to, want := range map[string]string{"192.168.1.1": "lan0", "192.168.2.1": "weft0", "203.0.113.7": "weft0", "9.9.9.9": "weft0", "2600::1": "weft0"} {
		if got := leaves(t, to, 0, ""); got != want {
			t.Errorf("%s leaves by %q, want %q", to, got, want)
		}
	}
}

// asks sends a datagram as any program does; what nftables drops on its way out is EPERM.
func asks(at string) error {
	c, err := net.Dial("udp", at)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte{1})
	return err
}

func TestWithAnExitNobodyNearbyIsAskedForNames(t *testing.T) {
	_, lan := exitWorld(t)
	plainLink(t, lan, "fe80::20/64")
	routes := OverlayRoutes{Interface: "weft0", Networks: prefixes("0.0.0.0/0", "::/0"), Exit: true}
	set := func() {
		t.Helper()
		if _, err := SetOverlayRoutes(routes); err != nil {
			t.Fatal(err)
		}
	}
	look := func(when string, want map[string]bool) {
		t.Helper()
		for at, passes := range want {
			err := asks(at)
			if passes && err != nil || !passes && !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: asking %s: %v, want it to pass: %v", when, at, err, passes)
			}
		}
	}
	set()
	look("without the LAN", map[string]bool{
		"[fe80::1%lan0]:53": false, "[fe80::1%lan0]:853": false, "[fe80::1%lan0]:5353": false, "[fe80::1%lan0]:5355": false, "[fe80::1%lan0]:9": true,
		"100.64.0.9:53": true, "9.9.9.9:53": true,
	})
	routes.LAN, routes.Resolvers = true, []netip.AddrPort{netip.MustParseAddrPort("192.168.1.53:53"), netip.MustParseAddrPort("192.168.1.54:853")}
	set()
	look("with the LAN", map[string]bool{
		"192.168.1.1:53": false, "192.168.1.1:853": false, "192.168.1.1:631": true, "192.168.1.53:53": true, "192.168.1.53:853": false, "192.168.1.54:853": true,
		"[fe80::1%lan0]:53": false, "[fe80::1%lan0]:5353": true, "9.9.9.9:53": true,
	})
	if err := ClearOverlayRoutes("weft0"); err != nil {
		t.Fatal(err)
	}
	look("without an exit", map[string]bool{"192.168.1.1:53": true, "[fe80::1%lan0]:53": true})
}

func TestWhatAnExitChangesOfTheKernelsSettingsIsPutBack(t *testing.T) {
	exitWorld(t)
	const key = "net/ipv4/conf/all/src_valid_mark"
	strict := func(value string) {
		t.Helper()
		if err := set(setting{"net/ipv4/conf/lan0/rp_filter", value}); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when, want string) {
		t.Helper()
		if got := sysctl(t, key); got != want {
			t.Errorf("%s src_valid_mark is %s, want %s", when, got, want)
		}
	}
	routes := func(name string, exit bool) {
		t.Helper()
		if _, err := SetOverlayRoutes(OverlayRoutes{Interface: name, Networks: prefixes("0.0.0.0/0"), Exit: exit}); err != nil {
			t.Fatal(err)
		}
	}
	second, _ := openTUNPair(t, "weft1")
	plainLink(t, second)
	filters, _ := filepath.Glob(sysctls + "net/ipv4/conf/*/rp_filter")
	for _, f := range filters {
		if err := set(setting{strings.TrimPrefix(f, sysctls), "0"}); err != nil {
			t.Skipf("needs a namespace whose settings can be set: %v", err)
		}
	}
	routes("weft0", true)
	expect("where nobody filters", "0")
	strict("1")
	routes("weft0", true)
	expect("where lan0 filters strictly", "1")
	routes("weft1", true)
	strict("0")
	routes("weft0", true)
	routes("weft0", false)
	expect("while another network has an exit", "1")
	if err := ClearOverlayRoutes("weft1"); err != nil { // the next process's doing
		t.Fatal(err)
	}
	expect("without an exit", "0")
	if left, err := Left("weft1", t.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("there is left %v: %v", left, err)
	}
	strict("1")
	if err := set(setting{key, "1"}); err != nil {
		t.Fatal(err)
	}
	routes("weft0", true)
	routes("weft0", false)
	expect("where it was so before", "1")
}

func TestANetworkBehindARouterIsReachedThroughTheOverlayUnlessTheMachineIsInIt(t *testing.T) {
	_, lan := exitWorld(t)
	routes := OverlayRoutes{Interface: "weft0", Networks: prefixes("192.168.142.0/24", "10.0.0.0/8", "2001:db8:142::/64")}
	for range 2 { // again changes nothing
		if attached, err := SetOverlayRoutes(routes); err != nil || len(attached) != 0 {
			t.Fatalf("attached to %v, %v", attached, err)
		}
	}
	for to, want := range map[string]string{"192.168.142.9": "weft0", "10.9.9.9": "weft0", "2001:db8:142::9": "weft0", "9.9.9.9": "lan0", "192.168.1.1": "lan0"} {
		if got := leaves(t, to, 0, ""); got != want {
			t.Errorf("%s leaves by %q, want %q", to, got, want)
		}
		if got := leaves(t, to, Mark, ""); got != "lan0" {
			t.Errorf("weft's own packets to %s leave by %q, want lan0: they would go into the tunnel that they are", to, got)
		}
	}
	plainLink(t, lan, "192.168.142.20/24", "10.1.0.20/16")
	attached, err := SetOverlayRoutes(routes)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(attached, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	if !slices.Equal(attached, prefixes("10.1.0.0/16", "192.168.142.0/24")) {
		t.Errorf("the machine is attached to %v", attached)
	}
	for to, want := range map[string]string{"192.168.142.9": "lan0", "10.1.9.9": "lan0", "10.9.9.9": "weft0"} {
		if got := leaves(t, to, 0, ""); got != want {
			t.Errorf("at home %s leaves by %q, want %q", to, got, want)
		}
	}
	if _, err := SetOverlayRoutes(OverlayRoutes{Interface: "weft0"}); err != nil {
		t.Fatal(err)
	}
	rules, err := rulesTo(tableOf("weft0"), netlink.FAMILY_V4)
	if err != nil || len(rules) != 0 {
		t.Errorf("without networks there are rules: %v, %v", rules, err)
	}
}
