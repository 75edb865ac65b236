package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// fastName is the case of one link without a limit, which the processors are busy with: nothing runs beside it.
const fastName = "fast"

// Within a connection bonding is on and off in turn: connections one after the other differ by up to a quarter, whatever their length, and the machine
// gives more or less from one second to the next.
const (
	fastWarm    = time.Second
	fastStretch = 600 * time.Millisecond // that bonding is on, or off
	fastAfter   = 200 * time.Millisecond // of a stretch, at its beginning, does not count
	fastOff     = 8                      // stretches without, in each direction, for each run that is asked for: one more is with it
	fastLength  = fastWarm + (2*fastOff+1)*fastStretch
)

// fast measures what bonding costs where there is nothing to bond, and how long data packets are where there is.
func (r *bondRun) fast(ctx context.Context) (err error) {
	var c *bondCase
	for _, x := range r.cases() {
		if x.name == fastName {
			c = x
		}
	}
	if c == nil {
		return nil
	}
	if err := r.lengths(ctx, c); err != nil {
		return err
	}
	if err := r.closeWorlds(); err != nil {
		return err
	}
	w, err := r.newFastWorld(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.net.Close()) }()
	u := bondUnit{c: c, subject: bonded, length: fastLength, warm: fastWarm, load: loadTCP}
	for k := range 2 * fastOff {
		what := []bondHappening{turnsOff, turnsOn}[k%2]
		u.script = append(u.script, bondEvent{at: fastWarm + time.Duration(k+1)*fastStretch, what: what})
	}
	if err := w.startNodes(ctx, &u); err != nil {
		return err
	}
	for round := 1; round <= r.Rounds; round++ {
		for _, out := range directions {
			v := u
			v.out, v.round = out, round
			x, err := w.run(ctx, &v)
			if err != nil {
				return fmt.Errorf("one fast link: %w", err)
			}
			x.Control = r.congestion
			r.report.Runs = append(r.report.Runs, x)
			r.say("bonding on and off in turn: %s; with it %.3f of without", x, quantile(slices.Sorted(slices.Values(x.withBonding())), 0.5))
		}
	}
	return nil
}

// newFastWorld is two hosts on one network without any limit.
func (r *bondRun) newFastWorld(ctx context.Context) (*bondWorld, error) {
	return r.layOut(ctx, 0, func(w *bondWorld) (err error) {
		w.a, err = w.net.AddHost("a")
		return err
	})
}

// standardLength is how long an IPv4 packet of WireGuard is that carries one of n bytes: headers of IPv4 and UDP, type,
// receiver and counter, the packet in steps of 16 bytes, and its tag (WireGuard's paper, section 5.4.6).
func standardLength(n int) int { return 20 + 8 + 16 + (n+15)/16*16 + 16 }

// lengths measures how long the packets are that carry datagrams over two links, beyond what WireGuard makes of them.
func (r *bondRun) lengths(ctx context.Context, c *bondCase) error {
	if len(r.worlds) == 0 {
		w, err := r.newWorld(ctx, 0)
		if err != nil {
			return err
		}
		r.worlds = append(r.worlds, w)
	}
	w := r.worlds[0]
	u := &bondUnit{c: c, subject: bonded, links: pair20, out: true, length: 4 * time.Second, load: loadUDP, mbit: surviving}
	if err := w.prepare(ctx, u); err != nil {
		return err
	}
	p, err := w.b.OpenPackets("eth0")
	if err != nil {
		return err
	}
	defer p.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := w.run(ctx, u)
		ended <- err
	}()
	const virtio, ethernet = 10, 14
	buf := make([]byte, 70<<10)
	longest, by := 0, map[netip.Addr]int{}
	for until := time.Now().Add(u.length); time.Now().Before(until); {
		n, err := p.Read(buf, until)
		if err != nil {
			break // the time is over
		}
		b := buf[:n]
		if len(b) < virtio+ethernet+20+8+16 || binary.BigEndian.Uint16(b[virtio+12:]) != 0x0800 || b[virtio+ethernet+9] != 17 {
			continue
		}
		// A transport data message of a datagram's length, from a.
		ip := b[virtio+ethernet:]
		if length := int(binary.BigEndian.Uint16(ip[2:])); length > bondDatagram && ip[28] == 4 {
			longest = max(longest, length)
			by[netip.AddrFrom4([4]byte(ip[12:16]))]++
		}
	}
	if err := <-ended; err != nil {
		return err
	}
	if longest == 0 {
		return errors.New("no data packet of weft was seen")
	}
	if len(by) < 2 {
		r.report.note("when the length of data packets was looked at, one link carried all of them")
	}
	added := float64(longest - standardLength(20+8+bondDatagram))
	r.report.Lengths = append(r.report.Lengths, added)
	r.say("data packets over %d links: %d bytes, %.0f more than WireGuard's", len(by), longest, added)
	return nil
}

// withBonding is what the connection got with bonding, of what it got without: for each stretch without, by what it had before and after it.
func (x *BondRun) withBonding() (ratios []float64) {
	var got []float64 // on, off, on, ...
	from := x.Warm
	for i := range len(x.Events) + 1 {
		to := x.Warm + x.Seconds
		if i < len(x.Events) {
			to = x.Events[i].At
		}
		got = append(got, x.mean(from+fastAfter.Seconds(), to))
		from = to
	}
	for i := 1; i+1 < len(got); i += 2 {
		if got[i] > 0 {
			ratios = append(ratios, (got[i-1]+got[i+1])/2/got[i])
		}
	}
	return ratios
}

// judgeFast holds bonding against none.
func judgeFast(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		var ratios, rates []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			ratios, rates = append(ratios, x.withBonding()...), append(rates, x.Mbit)
		}
		beside := ""
		if len(rates) > 0 {
			beside = fmt.Sprintf("%.0f Mbit/s with and without", quantile(slices.Sorted(slices.Values(rates)), 0.5))
		}
		r.goal(BondGoal{Case: c.name, Name: "one link, x without bonding", Direction: (&bondUnit{out: out}).direction(), Control: control, Least: 0.98, Beside: beside}, ratios)
	}
	r.goal(BondGoal{Case: c.name, Name: "two links, bytes added to a data packet", Control: control, Most: most(0)}, r.Lengths)
}
