//go:build linux

package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"pgregory.net/rapid"
)

func udpSocket(t testing.TB, network, addr string) (*net.UDPConn, *UDPSocket) {
	t.Helper()
	c, err := net.ListenPacket(network, addr)
	if err != nil {
		t.Skipf("%s on %s: %v", network, addr, err)
	}
	conn := c.(*net.UDPConn)
	t.Cleanup(func() { conn.Close() })
	if _, _, err := SetUDPBuffers(conn, 4<<20); err != nil {
		t.Fatal(err)
	}
	s, err := NewUDPSocket(conn)
	if err != nil {
		t.Fatal(err)
	}
	return conn, s
}

// readDatagrams reads n datagrams, runs taken apart.
func readDatagrams(t testing.TB, conn *net.UDPConn, r *UDPReader, n int) (got [][]byte, from []netip.AddrPort) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	for len(got) < n {
		reads, err := r.Read()
		if err != nil {
			t.Fatalf("after %d of %d datagrams: %v", len(got), n, err)
		}
		for _, m := range reads {
			for data := m.Data; len(data) > 0; {
				k := min(m.Segment, len(data))
				got, from = append(got, bytes.Clone(data[:k])), append(from, m.From)
				data = data[k:]
			}
		}
	}
	return got, from
}

// payload is a datagram of n bytes that says which it is.
func payload(i, n int) []byte {
	b := bytes.Repeat([]byte{byte(i), byte(i >> 8), byte(i >> 16)}, n/3+1)[:n]
	if n >= 4 {
		binary.BigEndian.PutUint32(b, uint32(i))
	}
	return b
}

// Datagrams of any lengths, one by one or as runs, with and without offload, for several receivers: each
// receiver gets its own, whole and in order.
func TestEveryDatagramOfABatchArrivesWholeAndInOrder(t *testing.T) {
	for _, offload := range []bool{true, false} {
		for _, network := range []string{"udp4", "udp6", "udp"} {
			t.Run(fmt.Sprintf("%s, offload %v", network, offload), func(t *testing.T) {
				addr := map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0", "udp": "[::]:0"}[network]
				_, sender := udpSocket(t, network, addr)
				if !offload {
					if err := sender.WithoutOffload(); err != nil {
						t.Fatal(err)
					}
				}
				type receiver struct {
					conn *net.UDPConn
					r    *UDPReader
					dest UDPDest
				}
				var receivers [3]receiver
				for i := range receivers {
					at := "127.0.0.1:0"
					if network == "udp6" || network == "udp" && i == 1 {
						at = "[::1]:0"
					}
					conn, s := udpSocket(t, "udp", at)
					receivers[i].conn, receivers[i].r = conn, NewUDPReader(s)
					sender.SetDest(&receivers[i].dest, s.Local(), netip.Addr{})
				}
				granted, _, err := SetUDPBuffers(receivers[0].conn, 4<<20) // as root; else it may be less
				if err != nil {
					t.Fatal(err)
				}
				room := min(2*granted, 2<<20)
				w := NewUDPWriter()
				rapid.Check(t, func(rt *rapid.T) {
					var want [3][][]byte
					left, sent, n := room, 0, 0
					for range rapid.IntRange(1, 60).Draw(rt, "adds") {
						to := rapid.IntRange(0, 2).Draw(rt, "receiver")
						size := rapid.OneOf(rapid.IntRange(1, 40), rapid.Just(1452), rapid.IntRange(1, 9000)).Draw(rt, "size")
						count := rapid.OneOf(rapid.Just(1), rapid.IntRange(1, 100)).Draw(rt, "count")
						last := rapid.IntRange(1, size).Draw(rt, "last")
						var data []byte
						for i := range count {
							k := size
							if i == count-1 {
								k = last
							}
							p := payload(n, k)
							data, n = append(data, p...), n+1
							want[to] = append(want[to], p)
						}
						// What the kernel counts against a socket's buffer is more than a datagram's bytes.
						if left -= 2*len(data) + 1500*count; left < 0 {
							want[to] = want[to][:len(want[to])-count]
							break
						}
						sent += count
						w.Add(&receivers[to].dest, data, size)
					}
					if c := w.Flush(); c.Datagrams != sent || c.Full+c.Failed != 0 {
						rt.Fatalf("of %d datagrams: %+v", sent, c)
					}
					for i := range receivers {
						got, _ := readDatagrams(t, receivers[i].conn, receivers[i].r, len(want[i]))
						for j := range got {
							if !bytes.Equal(got[j], want[i][j]) {
								rt.Fatalf("receiver %d: datagram %d of %d bytes begins %x, want %d bytes, %x", i, j, len(got[j]), got[j][:min(4, len(got[j]))], len(want[i][j]), want[i][j][:min(4, len(want[i][j]))])
							}
						}
					}
				})
			})
		}
	}
}

func TestARunThatArrivedLeavesAsOneSend(t *testing.T) {
	_, sender := udpSocket(t, "udp4", "127.0.0.1:0")
	conn, middle := udpSocket(t, "udp4", "127.0.0.1:0")
	if send, receive := middle.Offload(); !send || !receive {
		t.Skipf("this kernel has no UDP offload (send %v, receive %v)", send, receive)
	}
	var to UDPDest
	sender.SetDest(&to, middle.Local(), netip.Addr{})
	w := NewUDPWriter()
	w.Add(&to, make([]byte, 40*1400), 1400)
	w.Flush()
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	reads, err := NewUDPReader(middle).Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(reads) != 1 || reads[0].Segment != 1400 || len(reads[0].Data) != 40*1400 {
		t.Fatalf("40 datagrams arrive as %d messages, the first of %d bytes", len(reads), len(reads[0].Data))
	}
	w.Add(&to, reads[0].Data, reads[0].Segment)
	if len(w.messages) != 1 {
		t.Errorf("they leave as %d messages", len(w.messages))
	}
	w.Flush()
}

func TestAReplyLeavesFromTheAddressThatWasHit(t *testing.T) {
	for _, c := range []struct{ network, bind, hit string }{
		{"udp4", "0.0.0.0:0", "127.0.0.3"}, {"udp", "[::]:0", "127.0.0.4"}, {"udp", "[::]:0", "::1"}, {"udp6", "[::]:0", "::1"},
	} {
		conn, s := udpSocket(t, c.network, c.bind)
		hit := netip.AddrPortFrom(netip.MustParseAddr(c.hit), s.Local().Port())
		peer, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(hit)) // connected: takes replies from there only
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		peer.Write([]byte("hello"))
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		reads, err := NewUDPReader(s).Read()
		if err != nil {
			t.Fatal(err)
		}
		if reads[0].Local != hit.Addr() || reads[0].From != peer.LocalAddr().(*net.UDPAddr).AddrPort() {
			t.Errorf("%s: came from %s to %s", c.hit, reads[0].From, reads[0].Local)
		}
		var to UDPDest
		s.SetDest(&to, reads[0].From, reads[0].Local)
		w := NewUDPWriter()
		w.Add(&to, []byte("welcome"), 0)
		w.Flush()
		b := make([]byte, 100)
		peer.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := peer.Read(b); err != nil || string(b[:n]) != "welcome" {
			t.Errorf("%s: the reply is %q, %v", c.hit, b[:n], err)
		}
	}
}

// Where the path is too small for a run's datagrams, they go one by one, fragmented by the kernel.
func TestWhatLiesInASocketSaysForHowLong(t *testing.T) {
	for _, network := range []string{"udp4", "udp6"} {
		addr := map[string]string{"udp4": "127.0.0.1:0", "udp6": "[::1]:0"}[network]
		conn, s := udpSocket(t, network, addr)
		out, _ := udpSocket(t, network, addr)
		r := NewUDPReader(s)
		send := func() {
			if _, err := out.WriteToUDPAddrPort([]byte("hello"), s.Local()); err != nil {
				t.Fatal(err)
			}
		}
		read := func() time.Duration {
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			reads, err := r.Read()
			if err != nil || len(reads) != 1 {
				t.Fatal(len(reads), err)
			}
			return reads[0].Unread
		}
		send()
		time.Sleep(20 * time.Millisecond)
		if d := read(); d != 0 {
			t.Errorf("%s: nobody asked, and a datagram says that it lay for %v", network, d)
		}
		if err := s.Stamp(); err != nil {
			t.Skipf("%s: %v", network, err)
		}
		var d, most time.Duration
		for try := 0; try < 20 && d < 50*time.Millisecond; try++ { // the kernel begins some time after it was asked
			sent := time.Now()
			send()
			time.Sleep(50 * time.Millisecond)
			d, most = read(), time.Since(sent)
		}
		if d < 50*time.Millisecond || d > most {
			t.Errorf("%s: a datagram that lay for 50 to %v says %v", network, most, d)
		}
	}
}

func TestAClockThatIsSetMakesNothingOld(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{-time.Hour: 0, -1: 0, 0: 0, 3 * time.Millisecond: 3 * time.Millisecond, time.Second: time.Second, time.Hour: 0} {
		if got := lain(d); got != want {
			t.Errorf("by the clock that may be set a datagram lay for %v: taken for %v, want %v", d, got, want)
		}
	}
}

func TestARunTooLongForThePathIsTakenApart(t *testing.T) {
	inNetworkNamespace(t)
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = errors.Join(netlink.LinkSetMTU(lo, 1280), netlink.LinkSetUp(lo))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, sender := udpSocket(t, "udp4", "127.0.0.1:0")
	conn, receiver := udpSocket(t, "udp4", "127.0.0.1:0")
	var to UDPDest
	sender.SetDest(&to, receiver.Local(), netip.Addr{})
	w, r := NewUDPWriter(), NewUDPReader(receiver)
	for _, size := range []int{1400, 1400, 1200} {
		var data []byte
		for i := range 70 {
			data = append(data, payload(i, size)...)
		}
		w.Add(&to, data[:len(data)-7], size)
		if c := w.Flush(); c.Datagrams != 70 || c.Bytes != len(data)-7 {
			t.Fatalf("datagrams of %d bytes: %+v", size, c)
		}
		got, _ := readDatagrams(t, conn, r, 70)
		for i, b := range got {
			if want := payload(i, size); !bytes.Equal(b, want[:len(b)]) || len(b) < size-7 {
				t.Fatalf("datagram %d has %d bytes of %d", i, len(b), size)
			}
		}
	}
	if send, _ := sender.Offload(); send && (to.runs(1400) || !to.runs(1200)) {
		t.Error("it was not learnt which datagrams go in runs")
	}
}

func TestAFullSocketDropsAndSaysSo(t *testing.T) {
	_, sender := udpSocket(t, "udp4", "127.0.0.1:0")
	var to UDPDest
	sender.SetDest(&to, netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{})
	w := NewUDPWriter()
	w.Add(&to, []byte("to a port where nobody listens"), 0)
	if c := w.Flush(); c.Datagrams != 1 {
		t.Errorf("%+v", c)
	}
	sender.conn.Close()
	w.Add(&to, make([]byte, 3000), 1000)
	if c := w.Flush(); c.Datagrams != 0 || c.Full+c.Failed != 3 {
		t.Errorf("on a closed socket: %+v", c)
	}
}

func TestSeveralSocketsShareAPortAndKeepOthersOut(t *testing.T) {
	conns, err := UDPListen("udp4", "127.0.0.1:0", 3)
	if err != nil {
		t.Fatal(err)
	}
	addr := conns[0].LocalAddr().String()
	for _, c := range conns {
		defer c.Close()
		if c.LocalAddr().String() != addr {
			t.Errorf("%s beside %s", c.LocalAddr(), addr)
		}
	}
	if others, err := UDPListen("udp4", addr, 2); err == nil {
		t.Error("a second server joins the port")
		for _, c := range others {
			c.Close()
		}
	}
	const senders = 64
	for range senders {
		c, err := net.Dial("udp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("x"))
		c.Close()
	}
	total, used := 0, 0
	for _, c := range conns {
		c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n := 0
		for {
			if _, _, err := c.ReadFrom(make([]byte, 10)); err != nil {
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Fatal(err)
				}
				break
			}
			n++
		}
		total += n
		if n > 0 {
			used++
		}
	}
	if total != senders || used < 2 {
		t.Errorf("%d of %d datagrams arrived, on %d sockets", total, senders, used)
	}
}

func TestKernelsThatCorruptRunsAreKnown(t *testing.T) {
	for release, want := range map[string]bool{
		"6.18.4-amd64": false, "7.0.0": true, "7.0.12-rc1": true, "7.1": true, "7.1.4+deb13": true, "7.1.5": false, "7.2.0": false, "": false, "x.y": false,
	} {
		if corruptsGSO(release) != want {
			t.Errorf("%q: %v", release, !want)
		}
	}
}

// Forwarding with nothing in between: what a relay costs at least. A run of 44 datagrams of 1,452 bytes, and
// the same one by one.
func BenchmarkUDPForward(b *testing.B) {
	for _, run := range []int{44, 1} {
		for _, offload := range []bool{true, false} {
			b.Run(fmt.Sprintf("runs of %d, offload %v", run, offload), func(b *testing.B) {
				_, sender := udpSocket(b, "udp4", "127.0.0.1:0")
				middleConn, middle := udpSocket(b, "udp4", "127.0.0.1:0")
				sinkConn, sink := udpSocket(b, "udp4", "127.0.0.1:0")
				if !offload {
					middle.WithoutOffload()
				}
				var there, on UDPDest
				sender.SetDest(&there, middle.Local(), netip.Addr{})
				middle.SetDest(&on, sink.Local(), netip.Addr{})
				in, w, r := NewUDPWriter(), NewUDPWriter(), NewUDPReader(middle)
				data := make([]byte, 44*1452)
				drain := make(chan struct{})
				go func() {
					defer close(drain)
					for r := NewUDPReader(sink); ; {
						if _, err := r.Read(); err != nil {
							return
						}
					}
				}()
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				for b.Loop() {
					for i := 0; i < 44; i += run {
						in.Add(&there, data[i*1452:(i+run)*1452], 1452)
						if run == 1 {
							in.Flush()
						}
					}
					in.Flush()
					for left := len(data); left > 0; {
						reads, err := r.Read()
						if err != nil {
							b.Fatal(err)
						}
						for i := range reads {
							w.Add(&on, reads[i].Data, reads[i].Segment)
							left -= len(reads[i].Data)
						}
						w.Flush()
					}
				}
				b.StopTimer()
				middleConn.Close()
				sinkConn.Close()
				<-drain
			})
		}
	}
}
