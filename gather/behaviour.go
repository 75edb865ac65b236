package gather

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"weft"
	"weft/host"
	"weft/stun"
)

// maxDatagram is the longest STUN message that is read, in bytes: longer than any that was asked for.
const maxDatagram = 1500

// BehaviourConfig says whom to ask what a NAT does.
type BehaviourConfig struct {
	// Servers are STUN addresses of one family; Local the machine's own addresses, by which the absence of a NAT
	// is known. See stun.DiscoveryConfig.
	Servers []netip.AddrPort
	Local   []netip.Addr

	// Device is the interface whose way out is meant; "": the one that the routes say.
	Device string

	// Probers are those of Servers that Probe can ask to send a packet from outside. Probe asks one, and reports
	// whether that says to have sent it; it is called by a goroutine of its own, and ends with its context at the
	// latest. Without them it stays unknown whether a filter that asks for the port would ask for the address.
	Probers []stun.Prober
	Probe   func(ctx context.Context, server netip.AddrPort, p stun.Probe) (sent bool)

	// Progress, if it is not nil, is told what is known already, whenever that is more: the mapping after a round
	// trip or two, what silence shows some seconds later. It is called by Behaviour's goroutine.
	Progress func(stun.Report)
}

// Behaviour runs the tests of package stun against the servers from fresh sockets. It returns when there is
// nothing left to learn, some seconds at most, or when ctx ends: then with what is known.
func Behaviour(ctx context.Context, cfg BehaviourConfig) (stun.Report, error) {
	if len(cfg.Servers) == 0 {
		return stun.Report{}, errors.New("no STUN server of this address family is known")
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	network := "udp4"
	if cfg.Servers[0].Addr().Unmap().Is6() {
		network = "udp6"
	}
	came := make(chan datagram)
	var conns []*net.UDPConn
	var ports []uint16
	for i := range stun.DiscoverySockets {
		c, err := host.UDPAnyPort(cfg.Device, network)
		if err != nil {
			return stun.Report{}, err
		}
		defer c.Close()
		conns = append(conns, c)
		ports = append(ports, uint16(c.LocalAddr().(*net.UDPAddr).Port))
		wg.Go(func() { read(ctx, c, i, came) })
	}
	dc := stun.DiscoveryConfig{Servers: cfg.Servers, Local: cfg.Local, Ports: ports}
	if cfg.Probe != nil {
		dc.Probers = cfg.Probers
	}
	d := stun.NewDiscovery(time.Now(), dc)
	probed := make(chan answer)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var told weft.NAT
	for {
		a, next, done := d.Poll(time.Now())
		if r := d.Report(); cfg.Progress != nil && !done && r.NAT != told {
			told = r.NAT
			cfg.Progress(r)
		}
		switch {
		case done:
			return d.Report(), nil
		case a.Probe.Port != 0:
			wg.Go(func() {
				sent := cfg.Probe(ctx, a.To, a.Probe)
				select {
				case probed <- answer{a.Probe.ID, sent}:
				case <-ctx.Done():
				}
			})
			continue
		case a.Packet != nil:
			conns[a.Socket].WriteToUDPAddrPort(a.Packet, a.To) // lost is lost: the discovery asks again
			continue
		}
		timer.Reset(time.Until(next))
		select {
		case <-ctx.Done():
			return d.Report(), nil
		case p := <-came:
			d.Handle(time.Now(), p.socket, p.b, p.from)
		case p := <-probed:
			d.Probed(time.Now(), p.id, p.sent)
		case <-timer.C:
		}
	}
}

// datagram is what came to a socket, by its number.
type datagram struct {
	socket int
	from   netip.AddrPort
	b      []byte
}

// answer is a relay's to the wish for a probe.
type answer struct {
	id   stun.TransactionID
	sent bool
}

// read hands on what comes to a socket, until that is closed or ctx ends.
func read(ctx context.Context, c *net.UDPConn, socket int, to chan<- datagram) {
	stop := context.AfterFunc(ctx, func() { c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an earlier packet found nobody there
		}
		p := datagram{socket, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), append([]byte(nil), buf[:n]...)}
		select {
		case to <- p:
		case <-ctx.Done():
			return
		}
	}
}

// RTT asks one STUN server from a fresh socket how far it is.
func RTT(ctx context.Context, server netip.AddrPort) (time.Duration, error) {
	conn, err := (&net.Dialer{Control: host.Own}).DialContext(ctx, "udp", server.String())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	t := stun.NewTransaction(time.Now(), server, stun.TransactionConfig{RTO: stunRTO, Rc: stunTries, Rm: stunTries})
	buf := make([]byte, maxDatagram)
	for {
		packet, next, done := t.Poll(time.Now())
		if done {
			return 0, t.Err()
		}
		if packet != nil {
			conn.Write(packet) // lost is lost: the transaction asks again
		}
		conn.SetReadDeadline(next)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		n, err := conn.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return 0, err
		default:
			if r, ok := t.Handle(time.Now(), buf[:n], server); ok {
				return r.RTT, r.Err()
			}
		}
	}
}
