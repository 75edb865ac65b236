//go:build linux

package host

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// markedPacket is an IP packet of no protocol that the kernel knows (253, RFC 3692) with a mark in it.
func markedPacket(from, to netip.Addr, mark byte) []byte {
	if from.Is4() {
		b := []byte{0: 0x45, 3: 24, 8: 64, 9: 253, 20: mark, 23: 0}
		copy(b[12:], from.AsSlice())
		copy(b[16:], to.AsSlice())
		sum := uint32(0)
		for i := 0; i < 20; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
		return b
	}
	b := []byte{0: 0x60, 5: 4, 6: 253, 7: 64, 40: mark, 43: 0}
	copy(b[8:], from.AsSlice())
	copy(b[24:], to.AsSlice())
	return b
}

// markOf finds the mark of a packet; 0: it is none.
func markOf(b []byte) byte {
	switch {
	case len(b) == 24 && b[0] == 0x45 && b[9] == 253:
		return b[20]
	case len(b) == 44 && b[0]>>4 == 6 && b[6] == 253:
		return b[40]
	}
	return 0
}

// openTUNPair is a TUN interface and its other end. Reads time out.
func openTUNPair(t *testing.T, name string) (netlink.Link, *os.File) {
	t.Helper()
	f, err := openTUN(tunDevice, name)
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("needs TUN: %v", err)
	}
	skipUnlessPermitted(t, "create a TUN interface", err)
	t.Cleanup(func() { f.Close() })
	if err := syscall.SetNonblock(int(f.Fd()), true); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l, f
}

// arrives reports whether a packet with the mark comes out of a TUN. The kernel forwards at once: what should not come is
// not waited for long.
func arrives(t *testing.T, f *os.File, mark byte, patience time.Duration) bool {
	t.Helper()
	return received(t, f, mark, patience) != nil
}

// received is the packet with the mark that comes out of a TUN; nil: none does.
func received(t *testing.T, f *os.File, mark byte, patience time.Duration) []byte {
	t.Helper()
	buf := make([]byte, 2048)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 20); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		if n, err := unix.Read(int(f.Fd()), buf); err == nil && markOf(buf[:n]) == mark {
			return buf[:n]
		}
	}
	return nil
}

func TestWhatComesInByAForwardingLinkLeavesByItAndByNoOther(t *testing.T) {
	testForwardingWithin(t)
}

func TestAKernelThatForwardsIPv6ForAllInterfacesOrNoneIsGuarded(t *testing.T) {
	was := forwardOne
	forwardOne = "forward_one"
	t.Cleanup(func() { forwardOne = was })
	testForwardingWithin(t)
}

// testForwardingWithin shows what a link that forwards within itself passes on, and what becomes of the kernel's settings.
func testForwardingWithin(t *testing.T) {
	inNetworkNamespace(t)
	ranges := prefixes("100.64.0.0/10", "fd7a::/48")
	_, overlay := openTUNPair(t, "weft0")
	lanLink, lan := openTUNPair(t, "lan0")
	otherLink, other := openTUNPair(t, "other0")
	if err := ConfigureLink("weft0", prefixes("100.64.0.7/32", "fd7a::7/128"), ranges, 1400); err != nil {
		t.Fatal(err)
	}
	plainLink(t, lanLink, "192.0.2.1/24", "2001:db8::1/64")
	plainLink(t, otherLink, "198.51.100.1/24", "2001:db8:9::1/64")
	type packet struct {
		what     string
		in, out  *os.File
		from, to string
	}
	within := []packet{
		{"IPv4 from peer to peer", overlay, overlay, "100.64.0.5", "100.64.0.6"},
		{"IPv6 from peer to peer", overlay, overlay, "fd7a::5", "fd7a::6"},
	}
	never := []packet{
		{"IPv4 from a peer to the LAN", overlay, lan, "100.64.0.5", "192.0.2.9"},
		{"IPv6 from a peer to the LAN", overlay, lan, "fd7a::5", "2001:db8::9"},
		{"IPv4 from the LAN to a peer", lan, overlay, "192.0.2.9", "100.64.0.6"},
		{"IPv6 from the LAN to a peer", lan, overlay, "2001:db8::9", "fd7a::6"},
		{"IPv4 from the LAN in a peer's name", lan, overlay, "100.64.0.5", "100.64.0.6"},
		{"IPv6 from the LAN in a peer's name", lan, overlay, "fd7a::5", "fd7a::6"},
		{"IPv4 from network to network", other, lan, "198.51.100.9", "192.0.2.9"},
		{"IPv6 from network to network", other, lan, "2001:db8:9::9", "2001:db8::9"},
	}
	mark := byte(0)
	expect := func(when string, list []packet, want bool) {
		t.Helper()
		for _, p := range list {
			mark++
			if _, err := unix.Write(int(p.in.Fd()), markedPacket(netip.MustParseAddr(p.from), netip.MustParseAddr(p.to), mark)); err != nil {
				t.Fatal(err)
			}
			patience := 60 * time.Millisecond
			if want {
				patience = 5 * time.Second
			}
			if got := arrives(t, p.out, mark, patience); got != want {
				t.Errorf("%s: %s arrives: %v", when, p.what, got)
			}
		}
	}
	rules := func() (n int) {
		t.Helper()
		list, err := netlink.RuleList(netlink.FAMILY_ALL)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			if r.Protocol == RouteProtocol {
				n++
			}
		}
		return n
	}
	before := sysctl(t, "net/ipv6/conf/all/forwarding")
	expect("before", append(within, never...), false)
	for range 2 { // saying it again changes nothing
		if err := ForwardWithin("weft0", ranges, false); err != nil {
			t.Fatal(err)
		}
		expect("forwarding", within, true)
		expect("forwarding", never, false)
		if n := rules(); n != 4 {
			t.Errorf("there are %d rules", n)
		}
	}
	// Where the machine forwards already, for somebody else, a peer still gets nowhere but to peers.
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	expect("on a router", within, true)
	expect("on a router", never[:2], false)
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+key, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := ForwardWithin("weft0", ranges, false); err != nil {
		t.Fatal(err)
	}
	if err := StopForwarding("weft0"); err != nil {
		t.Fatal(err)
	}
	expect("afterwards", append(within, never...), false)
	if n := rules(); n != 0 {
		t.Errorf("%d rules are left", n)
	}
	if got := sysctl(t, "net/ipv6/conf/all/forwarding"); got != before {
		t.Errorf("forwarding for all interfaces is %s afterwards, want what was before: %s", got, before)
	}
	if err := StopForwarding("weft0"); err != nil {
		t.Errorf("stopping it again: %v", err)
	}
	if err := ForwardWithin("none0", ranges, false); err == nil {
		t.Error("a link that is not there forwards")
	}
	if err := StopForwarding("none0"); err != nil {
		t.Errorf("stopping one that is gone: %v", err)
	}
}
