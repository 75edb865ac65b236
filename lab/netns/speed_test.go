package netns

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weft/lab/router"
	"weft/lab/vnet"
)

// benchHome is a server, and a host behind a router of the lab's own.
func benchHome(b *testing.B, link vnet.LinkConfig) (server *Host, h home) {
	b.Helper()
	if err := Available(); err != nil {
		b.Skip(err)
	}
	l, err := New(b.Context(), "weftbench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	server, err = l.AddHost("server")
	if err != nil {
		b.Fatal(err)
	}
	r, err := l.AddNATRouter("home", restricted, WithLink(link))
	if err != nil {
		b.Fatal(err)
	}
	pc, err := r.AddHost("pc")
	if err != nil {
		b.Fatal(err)
	}
	return server, home{r, pc}
}

func benchUDP(b *testing.B, h *Host, at netip.AddrPort) *net.UDPConn {
	c, err := h.ListenUDP(at)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// BenchmarkDelayError says by how much packets arrive later than a delay of 10 ms asks, on top of what they take
// without any: one packet in 2 ms, one way.
func BenchmarkDelayError(b *testing.B) {
	const delay = 10 * time.Millisecond
	server, h := benchHome(b, vnet.LinkConfig{})
	to := netip.AddrPortFrom(server.Addr(), 7000)
	s, c := benchUDP(b, server, netip.AddrPortFrom(netip.IPv4Unspecified(), 7000)), benchUDP(b, h.host, netip.AddrPort{})
	took := func(n int) (list []time.Duration) {
		began := time.Now()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		go func() {
			for range n {
				<-tick.C
				c.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, uint64(time.Since(began))), to)
			}
		}()
		buf := make([]byte, 16)
		for range n {
			if _, err := io.ReadFull(s, buf[:8]); err != nil {
				b.Fatal(err)
			}
			list = append(list, time.Since(began)-time.Duration(binary.BigEndian.Uint64(buf)))
		}
		slices.Sort(list)
		return list
	}
	took(100)
	bare := took(1000)
	if err := h.SetLink(vnet.LinkConfig{Delay: delay}); err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
	}
	list := took(max(1000, min(n, 10_000)))
	at := func(list []time.Duration, q float64) time.Duration { return list[int(q*float64(len(list)-1))] }
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	base := at(bare, 0.5)
	b.ReportMetric(us(base), "us-undelayed-p50")
	b.ReportMetric(us(at(bare, 0.99)), "us-undelayed-p99")
	b.ReportMetric(us(at(list, 0.5)-delay-base), "us-error-p50")
	b.ReportMetric(us(at(list, 0.99)-delay-base), "us-error-p99")
	b.ReportMetric(us(at(list, 0.01)-delay-base), "us-error-p1")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPacketRate says how many packets a second come through, of 1,200 bytes over UDP as fast as they can be
// sent, and what one TCP connection carries.
func BenchmarkPacketRate(b *testing.B) {
	for name, link := range map[string]vnet.LinkConfig{"plain": {}, "delay=5ms": {Delay: 5 * time.Millisecond}} {
		b.Run(name, func(b *testing.B) {
			server, h := benchHome(b, link)
			to := netip.AddrPortFrom(server.Addr(), 7000)
			s, c := benchUDP(b, server, netip.AddrPortFrom(netip.IPv4Unspecified(), 7000)), benchUDP(b, h.host, netip.AddrPort{})
			s.SetReadBuffer(4 << 20)
			var got atomic.Int64
			go func() {
				buf := make([]byte, 2048)
				for {
					if _, _, err := s.ReadFromUDPAddrPort(buf); err != nil {
						return
					}
					got.Add(1)
				}
			}()
			payload := make([]byte, 1200)
			sent := 0
			began := time.Now()
			for b.Loop() {
				c.WriteToUDPAddrPort(payload, to)
				sent++
			}
			b.ReportMetric(float64(got.Load())/time.Since(began).Seconds(), "packets/s")
			b.ReportMetric(float64(sent)/time.Since(began).Seconds(), "offered/s")
			b.ReportMetric(tcpRate(b, server, h.host), "Mbit/s-TCP")
		})
	}
}

// tcpRate is what one connection carries in a second.
func tcpRate(b *testing.B, server, pc *Host) float64 {
	l, err := server.Listen(netip.AddrPortFrom(netip.IPv4Unspecified(), 7001))
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	out, err := pc.DialContext(b.Context(), "tcp", netip.AddrPortFrom(server.Addr(), 7001).String())
	if err != nil {
		b.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	go io.Copy(out, zeros{})
	in.SetReadDeadline(time.Now().Add(time.Second))
	n, _ := io.Copy(io.Discard, in) // until the deadline
	return float64(n) * 8 / 1e6
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// A metronome is a station that wants to be woken every 2 ms and notes how late it is.
type metronome struct {
	next time.Time
	late []time.Duration
}

func (*metronome) Handle(time.Time, router.Leg, []byte) {}

func (m *metronome) Poll(now time.Time) time.Time {
	if !m.next.IsZero() && !now.Before(m.next) {
		m.late = append(m.late, now.Sub(m.next))
		m.next = time.Time{}
	}
	if m.next.IsZero() {
		m.next = now.Add(2 * time.Millisecond)
	}
	return m.next
}

// BenchmarkWakeUpError says how late the patchbay itself is with what is due, without what hosts add to that.
func BenchmarkWakeUpError(b *testing.B) {
	if err := Available(); err != nil {
		b.Skip(err)
	}
	bay, err := newPatchbay()
	if err != nil {
		b.Fatal(err)
	}
	defer bay.close()
	m := &metronome{}
	bay.do(func() {
		bay.loop.plugged = append(bay.loop.plugged, &plugged{owner: bay, station: m, fds: [2]int{-1, -1}})
	})
	for b.Loop() {
		<-time.After(10 * time.Millisecond)
	}
	var late []time.Duration
	bay.do(func() { late, bay.loop.plugged = slices.Clone(m.late), nil })
	slices.Sort(late)
	us := func(q float64) float64 { return float64(late[int(q*float64(len(late)-1))].Nanoseconds()) / 1000 }
	b.ReportMetric(us(0.5), "us-p50")
	b.ReportMetric(us(0.99), "us-p99")
	b.ReportMetric(us(0.999), "us-p99.9")
	b.ReportMetric(0, "ns/op")
}
