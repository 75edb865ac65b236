package real

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/lab/scenario"
)

const (
	// firstFlowPort is where the first flow arrives; the others count up from it.
	firstFlowPort = 40000
	// flowSize is that of a flow's packet where it says none, and overhead what IPv4 and UDP have of it.
	flowSize = 100
	overhead = 20 + 8
)

// A flow is numbered datagrams over the overlay, from one node to another.
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
	size := f.Size
	if size == 0 {
		size = flowSize
	}
	packet := make([]byte, max(8, size-overhead))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := 0; f.For == 0 || time.Duration(n)*f.Every < f.For; n++ {
		timer.Reset(time.Until(w.began.Add(f.Start + time.Duration(n)*f.Every)))
		select {
		case <-w.ctx.Done():
			return
		case <-timer.C:
		}
		f.mu.Lock()
		f.sent = n + 1
		f.mu.Unlock()
		binary.BigEndian.PutUint64(packet, uint64(n))
		if a := to.overlay.Load(); a != nil {
			mouth.WriteToUDPAddrPort(packet, netip.AddrPortFrom(*a, at.Port())) // what does not get out is lost
		}
	}
	<-w.ctx.Done() // what is under way may still arrive
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
		number := binary.BigEndian.Uint64(buf)
		f.mu.Lock()
		if number < uint64(f.sent) {
			for uint64(len(f.arrived)) <= number {
				f.arrived = append(f.arrived, 0)
			}
			if f.arrived[number] == 0 {
				f.arrived[number] = max(w.now(), 1)
			}
		}
		f.mu.Unlock()
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
