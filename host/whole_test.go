//go:build linux

package host

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// A loopback interface of 1,500 bytes: what is longer goes in fragments, or not at all.
func TestADatagramGoesWholeOrNotAtAll(t *testing.T) {
	inNetworkNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(netlink.LinkSetMTU(lo, 1500), netlink.LinkSetUp(lo)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		network, addr string
		most          int
	}{{"udp4", "127.0.0.1", 1500 - 28}, {"udp6", "[::1]", 1500 - 48}} {
		receive, err := net.ListenPacket(c.network, c.addr+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer receive.Close()
		send, err := net.ListenPacket(c.network, c.addr+":0")
		if err != nil {
			t.Fatal(err)
		}
		defer send.Close()
		conn, to := send.(*net.UDPConn), netip.MustParseAddrPort(receive.LocalAddr().String())
		if err := AllowFragments(conn); err != nil {
			t.Fatal(err)
		}
		arrives := func(n int) {
			t.Helper()
			buf := make([]byte, 4096)
			receive.SetReadDeadline(time.Now().Add(5 * time.Second))
			if got, _, err := receive.ReadFrom(buf); err != nil || got != n {
				t.Fatalf("%s: %d bytes came, want %d: %v", c.network, got, n, err)
			}
		}
		for range 2 { // the second time shows that the first left nothing behind
			if err := WriteUDPWhole(conn, make([]byte, c.most+1), to); !errors.Is(err, ErrTooLong) {
				t.Errorf("%s: %d bytes whole: %v", c.network, c.most+1, err)
			}
			if err := WriteUDPWhole(conn, make([]byte, c.most), to); err != nil {
				t.Errorf("%s: %d bytes whole: %v", c.network, c.most, err)
			}
			arrives(c.most)
			if _, err := conn.WriteToUDPAddrPort(make([]byte, c.most+1), to); err != nil {
				t.Errorf("%s: %d bytes in fragments: %v", c.network, c.most+1, err)
			}
			arrives(c.most + 1)
		}
	}
}
