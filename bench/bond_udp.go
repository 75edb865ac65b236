package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// bondDatagram is how long the benchmark's datagrams are, in bytes: those of video.
const bondDatagram = 1200

// A datagramFlow is datagrams at a constant rate through the overlay, each numbered and with the time at which it was sent. Both
// ends are in this process and share its clock.
type datagramFlow struct {
	began    time.Time
	rate     float64 // datagrams a second
	receiver *net.UDPConn

	mu       sync.Mutex
	sent     []time.Duration // when, since began
	arrived  []time.Duration // by number; 0: not
	order    []uint32        // of arrival, by number
	repeated int
	bytes    int64
}

// udpTo is where a flow goes.
type udpTo struct {
	out  bool // from a to b
	port uint16
	bits float64 // a second, of payload
}

// startUDP sends datagrams through weft until ctx ends, and receives them until the receiver is closed.
func (w *bondWorld) startUDP(ctx context.Context, to udpTo) (*datagramFlow, error) {
	from, at := w.a, w.b
	addr := w.addrs[1]
	if !to.out {
		from, at, addr = w.b, w.a, w.addrs[0]
	}
	in, err := at.ListenUDP(netip.AddrPortFrom(addr, to.port))
	if err != nil {
		return nil, err
	}
	in.SetReadBuffer(4 << 20)
	out, err := from.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		in.Close()
		return nil, err
	}
	f := &datagramFlow{began: time.Now(), rate: to.bits / 8 / bondDatagram, receiver: in}
	go f.receive(in)
	go func() {
		f.send(ctx, out, netip.AddrPortFrom(addr, to.port))
		out.Close()
	}()
	return f, nil
}

func (f *datagramFlow) send(ctx context.Context, c *net.UDPConn, to netip.AddrPort) {
	b := make([]byte, bondDatagram)
	next := time.NewTimer(0)
	defer next.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		for due := int(time.Since(f.began).Seconds() * f.rate); n < due; n++ {
			now := time.Since(f.began)
			f.mu.Lock()
			f.sent, f.arrived = append(f.sent, now), append(f.arrived, 0)
			f.mu.Unlock()
			binary.BigEndian.PutUint64(b, uint64(n))
			c.WriteToUDPAddrPort(b, to) // one that is refused is one that is lost
		}
		next.Reset(time.Until(f.began.Add(time.Duration(float64(n+1) / f.rate * float64(time.Second)))))
	}
}

func (f *datagramFlow) receive(c *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, _, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		now := time.Since(f.began)
		f.mu.Lock()
		if i := binary.BigEndian.Uint64(b[:n]); n == bondDatagram && i < uint64(len(f.arrived)) {
			if f.arrived[i] == 0 {
				f.arrived[i] = now
				f.order = append(f.order, uint32(i))
				f.bytes += bondDatagram
			} else {
				f.repeated++
			}
		}
		f.mu.Unlock()
	}
}

// UDPFigures are what became of datagrams.
type UDPFigures struct {
	Mbit      float64 `json:"mbit"` // offered, payload
	Sent      int     `json:"sent"`
	Lost      int     `json:"lost"`
	Repeated  int     `json:"repeated"`  // came twice
	Reordered int     `json:"reordered"` // came after a later one
	Latency50 float64 `json:"latency_p50_ms"`
	Latency99 float64 `json:"latency_p99_ms"`
}

// A Disturbance is what one event did to datagrams: of those that were sent from a moment before it until the next event.
type Disturbance struct {
	GapMS     float64 `json:"gap_ms"` // the longest time in which none arrived
	Lost      int     `json:"lost"`
	LatencyMS float64 `json:"latency_ms"` // the longest that one took
}

// figures are of all datagrams sent in a span.
func (f *datagramFlow) figures(from, to time.Duration) *UDPFigures {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := &UDPFigures{Mbit: f.rate * bondDatagram * 8 / 1e6, Repeated: f.repeated}
	var latency []float64
	for i, at := range f.sent {
		if at < from || at >= to {
			continue
		}
		u.Sent++
		if f.arrived[i] == 0 {
			u.Lost++
			continue
		}
		latency = append(latency, float64(f.arrived[i]-at)/float64(time.Millisecond))
	}
	highest := uint32(0)
	for _, i := range f.order {
		if i < highest && f.sent[i] >= from && f.sent[i] < to {
			u.Reordered++
		}
		highest = max(highest, i)
	}
	slices.Sort(latency)
	u.Latency50, u.Latency99 = quantile(latency, 0.5), quantile(latency, 0.99)
	return u
}

// beforeEvent is how much earlier than an event the datagrams were sent that it can still hurt: they are under way, or in a queue.
const beforeEvent = 250 * time.Millisecond

// disturbance is what happened between two times.
func (f *datagramFlow) disturbance(from, to time.Duration) (d Disturbance) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, at := range f.sent {
		if at < from-beforeEvent || at >= to {
			continue
		}
		if f.arrived[i] == 0 {
			d.Lost++
		} else {
			d.LatencyMS = max(d.LatencyMS, float64(f.arrived[i]-at)/float64(time.Millisecond))
		}
	}
	last := from
	for _, i := range f.order {
		at := f.arrived[i]
		if at > to {
			break
		}
		if at > from {
			d.GapMS = max(d.GapMS, float64(at-last)/float64(time.Millisecond))
		}
		last = max(from, at)
	}
	d.GapMS = max(d.GapMS, float64(to-last)/float64(time.Millisecond))
	return d
}

// curve is how many bytes had arrived at each of a number of times, and the longest that a datagram took to arrive then, in ms.
func (f *datagramFlow) curve(steps int, step time.Duration) (bytes []int64, latency []float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	bytes, latency = make([]int64, steps), make([]float64, steps)
	for _, i := range f.order {
		if k := int(f.arrived[i] / step); k < steps {
			bytes[k] += bondDatagram
			latency[k] = max(latency[k], float64(f.arrived[i]-f.sent[i])/float64(time.Millisecond))
		}
	}
	return bytes, latency
}

func (u *UDPFigures) String() string {
	return fmt.Sprintf("%d of %d lost, %d out of order, latency %.1f ms, 99 %% below %.1f", u.Lost, u.Sent, u.Reordered, u.Latency50, u.Latency99)
}
