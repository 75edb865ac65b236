package netns

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/lab/vnet"
)

// bareEnds is a UDP socket at each end of a line.
func bareEnds(b *testing.B, legs [2]*Leg) (near, far *net.UDPConn, to netip.AddrPort) {
	to = netip.AddrPortFrom(legs[1].Addr(), stampPort)
	near, far = benchUDP(b, legs[0].host, netip.AddrPortFrom(legs[0].Addr(), 0)), benchUDP(b, legs[1].host, to)
	far.SetReadBuffer(8 << 20)
	near.WriteToUDPAddrPort(make([]byte, 8), to) // ARP
	far.SetReadDeadline(time.Now().Add(3 * time.Second))
	if _, err := far.Read(make([]byte, 16)); err != nil {
		b.Fatal(err)
	}
	far.SetReadDeadline(time.Time{})
	return near, far, to
}

// BenchmarkLine says by how much datagrams arrive later than a line asks, and what the patchbay's thread takes of a
// processor for it: beside a TCP connection that fills two lines, of 300 Mbit/s and 10 ms and of 80 Mbit/s and 30 ms.
func BenchmarkLine(b *testing.B) {
	for _, load := range []struct {
		name  string
		lines []vnet.LinkConfig
	}{
		{"idle", []vnet.LinkConfig{{Delay: 10 * time.Millisecond}}},
		{"16", []vnet.LinkConfig{{Delay: 10 * time.Millisecond}, {Rate: 16e6, Delay: 10 * time.Millisecond, Queue: 200_000}}},
		{"300", []vnet.LinkConfig{{Delay: 10 * time.Millisecond}, {Rate: 300e6, Delay: 10 * time.Millisecond, Queue: 1_500_000}}},
		{"300+80", []vnet.LinkConfig{{Delay: 10 * time.Millisecond}, {Rate: 300e6, Delay: 10 * time.Millisecond, Queue: 1_500_000},
			{Rate: 80e6, Delay: 30 * time.Millisecond, Queue: 1_000_000}}},
		{"all", []vnet.LinkConfig{{Delay: 10 * time.Millisecond}, {Delay: 10 * time.Millisecond}}},
	} {
		b.Run(load.name, func(b *testing.B) {
			hostA, hostB, legs := offices(b, load.lines...)
			near, _, to := bareEnds(b, legs[0])
			bay := legs[0][0].bay
			var bytes [4]atomic.Int64
			for i, l := range legs[1:] {
				server, err := hostB.Listen(netip.AddrPortFrom(l[1].Addr(), 7001))
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { server.Close() })
				out, err := hostA.DialContext(b.Context(), "tcp", server.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { out.Close() })
				in, err := server.Accept()
				if err != nil {
					b.Fatal(err)
				}
				go io.Copy(out, zeros{})
				go func() {
					buf := make([]byte, 1<<20)
					for {
						n, err := in.Read(buf)
						if err != nil {
							return
						}
						bytes[i].Add(int64(n))
					}
				}()
			}
			time.Sleep(2 * time.Second) // a benchmark: connections reach their rates
			cpu := func() (d time.Duration) {
				bay.do(func() {
					var u unix.Rusage
					unix.Getrusage(unix.RUSAGE_THREAD, &u)
					d = time.Duration(u.Utime.Nano() + u.Stime.Nano())
				})
				return d
			}
			for i := range bytes {
				bytes[i].Store(0)
			}
			began, used := time.Now(), cpu()
			left, came := newStamps(b, hostA, legs[0][0].Name()), newStamps(b, hostB, legs[0][1].Name())
			tick := time.NewTicker(2 * time.Millisecond)
			defer tick.Stop()
			for n := range 3000 {
				<-tick.C
				near.WriteToUDPAddrPort(binary.BigEndian.AppendUint64(nil, uint64(n)), to)
			}
			took := time.Since(began)
			b.ReportMetric((cpu()-used).Seconds()/took.Seconds()*100, "%cpu")
			for i := range legs[1:] {
				b.ReportMetric(float64(bytes[i].Load())*8/took.Seconds()/1e6, fmt.Sprintf("Mbit/s-%d", i+1))
			}
			time.Sleep(100 * time.Millisecond)
			list, lost := passages(left, came)
			for _, q := range []float64{0.01, 0.5, 0.99, 0.999} {
				b.ReportMetric(float64((quantile(list, q)-10*time.Millisecond).Nanoseconds())/1000, fmt.Sprintf("us-p%v", q*100))
			}
			b.ReportMetric(float64(lost), "lost")
			b.ReportMetric(0, "ns/op")
		})
	}
}
