package real

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/lab/netns"
	"weft/lab/router"
	"weft/lab/scenario"
)

const (
	// firstFlowPort is where the first flow arrives; the others count up from it.
	firstFlowPort = 40000
	// overhead is what IPv4 and UDP have of a flow's packet.
	overhead = 20 + 8
	// overheadTCP is what IPv4 and TCP with timestamps have of one.
	overheadTCP = 20 + 32
	// flowBuffer holds what a fast flow brings while its reader has no processor, in bytes.
	flowBuffer = 4 << 20
)

// A flow is numbered packets from one machine to another: datagrams, or what one connection carries.
type flow struct {
	scenario.Flow
	done chan struct{}

	mu      sync.Mutex
	sent    int
	arrived []time.Duration
}

// startFlows begins every flow. One that cannot begin has lost all that it should have sent.
func (w *world) startFlows() {
	for i, f := range w.Flows {
		fl := &flow{Flow: f, done: make(chan struct{})}
		w.flows = append(w.flows, fl)
		go fl.run(w, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(firstFlowPort+i)))
	}
}

// run sends to the end. Sockets belong to no address, so that they outlive a restart of what gives the addresses.
func (f *flow) run(w *world, at netip.AddrPort) {
	defer close(f.done)
	if f.TCP {
		f.runTCP(w, at)
		return
	}
	from, to := w.hosts[f.From], w.hosts[f.To]
	ear, err := to.host.ListenUDP(at)
	if err != nil {
		w.cancel(err)
		return
	}
	var hearing sync.WaitGroup
	hearing.Go(func() { f.hear(w, ear) })
	defer hearing.Wait()
	defer ear.Close()
	mouth, err := from.host.ListenUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 0))
	if err != nil {
		w.cancel(err)
		return
	}
	defer mouth.Close()
	ear.SetReadBuffer(flowBuffer) // as far as the kernel allows it
	packet := make([]byte, max(8, f.Bytes()-overhead))
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for n := 0; f.next(w, timer, n); n++ {
		binary.BigEndian.PutUint64(packet, uint64(n))
		if a := w.address(to.Name, false); a.IsValid() {
			mouth.WriteToUDPAddrPort(packet, netip.AddrPortFrom(a, at.Port())) // what does not get out is lost
		}
	}
	<-w.ctx.Done() // what is under way may still arrive
}

// next waits until the n-th packet is due, and counts it as sent; false: there is none.
func (f *flow) next(w *world, timer *time.Timer, n int) bool {
	if f.For != 0 && time.Duration(n)*f.Every >= f.For {
		return false
	}
	// What is due already goes at once: timers are late by more than fast flows' steps.
	if wait := time.Until(w.began.Add(f.Start + time.Duration(n)*f.Every)); wait > 0 {
		timer.Reset(wait)
		select {
		case <-w.ctx.Done():
			return false
		case <-timer.C:
		}
	}
	f.mu.Lock()
	f.sent = n + 1
	f.mu.Unlock()
	return true
}

// runTCP is run over one connection. It begins when it first can; once it is broken, what is sent is lost.
func (f *flow) runTCP(w *world, at netip.AddrPort) {
	from, to := w.hosts[f.From], w.hosts[f.To]
	ear, err := to.host.Listen(at)
	if err != nil {
		w.cancel(err)
		return
	}
	var hearing sync.WaitGroup
	defer hearing.Wait()
	defer context.AfterFunc(w.ctx, func() { ear.Close() })()
	defer ear.Close()
	packet := make([]byte, max(8, f.Bytes()-overheadTCP))
	hearing.Go(func() {
		for {
			c, err := ear.Accept()
			if err != nil {
				return
			}
			hearing.Go(func() {
				defer context.AfterFunc(w.ctx, func() { c.Close() })()
				defer c.Close()
				for b := make([]byte, len(packet)); ; {
					if _, err := io.ReadFull(c, b); err != nil {
						return
					}
					f.arrive(w, binary.BigEndian.Uint64(b))
				}
			})
		}
	})
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var mouth net.Conn
	for n := 0; f.next(w, timer, n); n++ {
		if mouth == nil {
			mouth = f.connect(w, from, at.Port())
			if mouth == nil {
				return
			}
			defer context.AfterFunc(w.ctx, func() { mouth.Close() })()
			defer mouth.Close()
		}
		binary.BigEndian.PutUint64(packet, uint64(n))
		mouth.Write(packet) // one that is broken takes nothing any more
	}
	<-w.ctx.Done()
}

// connect tries until it can, or the run is over: then it is nil.
func (f *flow) connect(w *world, from *machine, port uint16) (c net.Conn) {
	err := netns.WaitFor(w.ctx, "a connection from "+f.From+" to "+f.To, func() (err error) {
		c, err = w.dial(from, "tcp", netip.AddrPortFrom(w.address(f.To, false), port))
		return err
	})
	if err != nil {
		return nil
	}
	return c
}

func (f *flow) hear(w *world, ear *net.UDPConn) {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := ear.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		if n < 8 {
			continue
		}
		f.arrive(w, binary.BigEndian.Uint64(buf))
	}
}

// arrive notes that a packet has come.
func (f *flow) arrive(w *world, number uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number >= uint64(f.sent) {
		return
	}
	for uint64(len(f.arrived)) <= number {
		f.arrived = append(f.arrived, 0)
	}
	if f.arrived[number] == 0 {
		f.arrived[number] = max(w.now(), 1)
	}
}

// wait returns when the flow is over; the world is closing.
func (f *flow) wait() { <-f.done }

// flowHistories are the flows as they are now.
func (w *world) flowHistories() (list []scenario.FlowHistory) {
	for _, f := range w.flows {
		f.mu.Lock()
		list = append(list, scenario.FlowHistory{Flow: f.Flow, Sent: f.sent, Arrived: slices.Clone(f.arrived)})
		f.mu.Unlock()
	}
	return list
}

// noteLinks tells the history what the links have carried so far of which somebody expects something.
func (w *world) noteLinks(at time.Duration) error {
	for _, e := range w.Expect {
		if !e.Idle {
			continue
		}
		bytes, err := w.carried(e.A)
		if err != nil {
			return err
		}
		w.history.Carried(at, e.A, bytes)
	}
	return nil
}

// carried is how many bytes a link has carried so far, both directions together.
func (w *world) carried(link string) (uint64, error) {
	count := func(out, in router.WireCounts, err error) (uint64, error) { return out.Bytes + in.Bytes, err }
	if r := w.routers[link]; r != nil {
		return count(r.LinkCounts())
	}
	h, index, _ := w.Leg(link)
	if index > 0 {
		return count(w.hosts[h.Name].legs[index-1].LinkCounts())
	}
	return count(w.hosts[h.Name].host.LinkCounts())
}
