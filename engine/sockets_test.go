package engine

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// openSockets opens sockets, or skips where there is no IPv6.
func openSockets(t *testing.T) (*sockets, []conn.ReceiveFunc, uint16) {
	t.Helper()
	s := newSockets()
	fns, port, err := s.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if len(fns) != 2 {
		t.Skip("this machine has not both address families")
	}
	return s, fns, port
}

func TestPacketsReachTheirAddressWhateverFamilyWasSentToBefore(t *testing.T) {
	s, _, _ := openSockets(t)
	receivers := map[string]*net.UDPConn{}
	for _, at := range []string{"127.0.0.1", "127.0.0.2", "::1"} {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(at)})
		if err != nil {
			t.Skipf("no socket on %s: %v", at, err)
		}
		defer c.Close()
		receivers[at] = c
	}
	buf := make([]byte, 100)
	for round := range 20 {
		for at, c := range receivers {
			ep := &conn.StdNetEndpoint{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(at), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())}
			for _, n := range []int{1, 3} {
				var bufs [][]byte
				for i := range n {
					bufs = append(bufs, fmt.Appendf(nil, "%s %d %d", at, round, i))
				}
				if err := s.Send(bufs, ep); err != nil {
					t.Fatalf("to %s: %v", at, err)
				}
				for _, want := range bufs {
					c.SetReadDeadline(time.Now().Add(5 * time.Second))
					got, _, err := c.ReadFromUDP(buf)
					if err != nil || !bytes.Equal(buf[:got], want) {
						t.Fatalf("at %s: %q (%v), not %q", at, buf[:got], err, want)
					}
				}
			}
		}
	}
}

func TestABatchThatTheDeviceCannotTakeAtOnceIsTakenInPieces(t *testing.T) {
	s, fns, port := openSockets(t)
	to := &conn.StdNetEndpoint{AddrPort: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)}
	const packets = 50
	var bufs [][]byte
	for i := range packets {
		bufs = append(bufs, bytes.Repeat([]byte{byte(i)}, 200))
	}
	if err := s.Send(bufs, to); err != nil {
		t.Fatal(err)
	}
	const room = 7
	into, sizes, eps := make([][]byte, room), make([]int, room), make([]conn.Endpoint, room)
	for i := range into {
		into[i] = make([]byte, 2048)
	}
	for got := 0; got < packets; {
		n, err := fns[0](into, sizes, eps)
		if err != nil || n == 0 || n > room {
			t.Fatalf("received %d, %v", n, err)
		}
		for i := range n {
			if sizes[i] != 200 || into[i][0] != byte(got) || eps[i].(*conn.StdNetEndpoint).Port() != port {
				t.Fatalf("packet %d is %d bytes of %d from %s", got, sizes[i], into[i][0], eps[i].DstToString())
			}
			got++
		}
	}
	s.Close()
	if _, err := fns[0](into, sizes, eps); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
