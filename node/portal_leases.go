package node

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/host"
	"weft/lease"
	"weft/wire"
)

// How often a router tells of itself (RFC 4861 sections 6.2.1 and 10).
const (
	advertisedFirst = 3                // times, when it begins
	advertisedSoon  = 16 * time.Second // between these
	advertisedLeast = 200 * time.Second
	advertisedMost  = 600 * time.Second
	advertisedRest  = 3 * time.Second // at least, whoever asks
)

// leases tells the clients of a local portal their addresses: by DHCP, and in IPv6 by DHCPv6 and router advertisements. What one asks is
// answered by a goroutine for each of the three. Nil is none.
type leases struct {
	log    *slog.Logger
	conns  []net.PacketConn
	router *host.Advertiser // nil: none
	over   chan struct{}
	done   sync.WaitGroup // the router has said its last word

	mu   sync.Mutex
	four *lease.Server
	six  *lease.Server6
}

// serveLeases tells clients at the portal's interface what the other end offers.
func serveLeases(q PortalRequest, offer wire.Portal, mtu int, log *slog.Logger) (*leases, error) {
	l := &leases{log: log, over: make(chan struct{})}
	resolvers := offer.Resolvers
	if len(q.Resolvers) > 0 {
		resolvers = q.Resolvers
	}
	of := func(v4 bool) []netip.Addr {
		return slices.DeleteFunc(slices.Clone(resolvers), func(a netip.Addr) bool { return a.Is4() != v4 })
	}
	if offer.Addr4.IsValid() {
		if err := l.serve4(q, offer, of(true), mtu); err != nil {
			return nil, err
		}
	}
	if offer.Addr6.IsValid() && !q.Share.IsValid() {
		err := l.serve6(q.Interface, lease.Config6{Addr: offer.Addr6, Resolvers: of(false), MTU: mtu})
		if errors.Is(err, host.ErrIPv6Off) && l.four != nil {
			log.Warn("the client of the portal gets no address of IPv6", "error", err)
		} else if err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *leases) serve4(q PortalRequest, offer wire.Portal, resolvers []netip.Addr, mtu int) (err error) {
	cfg := lease.Config{Net: offer.Addr4, Single: offer.Addr4.Addr(), Gateway: portalGateway(offer), Resolvers: resolvers, MTU: mtu}
	if q.Share.IsValid() {
		cfg.Net, cfg.Single, cfg.Gateway = q.Share, netip.Addr{}, q.Share.Addr()
	}
	cfg.Server = cfg.Gateway
	if l.four, err = lease.New(cfg); err != nil {
		return err
	}
	conn, err := host.ListenDHCP(q.Interface)
	if err != nil {
		return err
	}
	l.run(conn, func(b []byte, _ net.Addr) ([]byte, net.Addr) {
		answer, to := l.four.Handle(time.Now(), b)
		return answer, net.UDPAddrFromAddrPort(to)
	})
	return nil
}

func (l *leases) serve6(iface string, cfg lease.Config6) (err error) {
	router, hardware, err := host.ListenSolicitations(iface)
	if err != nil {
		return err
	}
	cfg.Hardware = hardware
	six, err := lease.New6(cfg)
	var conn net.PacketConn
	if err == nil {
		conn, err = host.ListenDHCP6(iface)
	}
	if err != nil {
		router.Close()
		return err
	}
	l.router, l.six = router, six
	l.run(conn, func(b []byte, from net.Addr) ([]byte, net.Addr) {
		return l.six.Handle(time.Now(), b), from
	})
	l.done.Go(l.advertise)
	return nil
}

// run answers what comes to a socket, until that is closed.
func (l *leases) run(conn net.PacketConn, handle func(b []byte, from net.Addr) (answer []byte, to net.Addr)) {
	l.conns = append(l.conns, conn)
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			l.mu.Lock()
			answer, to := handle(b[:n], from)
			l.mu.Unlock()
			if answer == nil {
				continue
			}
			if _, err := conn.WriteTo(answer, to); err != nil {
				l.log.Warn("a client of the portal was not told its address", "to", to, "error", err)
			}
		}
	}()
}

// advertise tells of the router now and then, and whoever asks; all hear all of it. The last word is that it is no router any more.
func (l *leases) advertise() {
	asked := make(chan struct{}, 1)
	go func() {
		for l.router.Solicited() == nil { // until it is closed
			select {
			case asked <- struct{}{}:
			default:
			}
		}
	}()
	say := func(over bool) {
		if err := l.router.Advertise(l.six.Advertisement(over)); err != nil {
			l.log.Debug("the portal's clients were not told of their router", "error", err)
		}
	}
	var last time.Time
	next := time.NewTimer(0)
	defer next.Stop()
	for said := 0; ; {
		select {
		case <-l.over:
			say(true)
			l.router.Close()
			return
		case <-asked:
			next.Reset(time.Until(last.Add(advertisedRest)))
			continue
		case <-next.C:
		}
		say(false)
		last = time.Now()
		if said++; said < advertisedFirst {
			next.Reset(advertisedSoon)
		} else {
			next.Reset(advertisedLeast + rand.N(advertisedMost-advertisedLeast))
		}
	}
}

func (l *leases) list() (out []weft.PortalLease) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var given []lease.Lease
	if l.four != nil {
		given = l.four.Leases(time.Now())
	}
	if l.six != nil {
		given = append(given, l.six.Leases(time.Now())...)
	}
	for _, x := range given {
		out = append(out, weft.PortalLease{Addr: x.Addr, Client: x.Client, Name: x.Name, Expires: x.Expires})
	}
	return out
}

func (l *leases) close() {
	if l == nil {
		return
	}
	for _, c := range l.conns {
		c.Close()
	}
	close(l.over)
	l.done.Wait()
}
