package node

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft"
	"weft/host"
	"weft/lease"
	"weft/wire"
)

// leases is the DHCP server of a local portal: a goroutine of its own. Nil is none.
type leases struct {
	conn net.PacketConn

	mu     sync.Mutex
	server *lease.Server
}

// serveLeases tells clients at the portal's interface what the other end offers.
func serveLeases(q PortalRequest, offer wire.Portal, mtu int, log *slog.Logger) (*leases, error) {
	cfg := lease.Config{Net: offer.Addr4, Single: offer.Addr4.Addr(), Gateway: portalGateway(offer), Resolvers: offer.Resolvers, MTU: mtu}
	if q.Share.IsValid() {
		cfg.Net, cfg.Single, cfg.Gateway = q.Share, netip.Addr{}, q.Share.Addr()
	}
	cfg.Server = cfg.Gateway
	if len(q.Resolvers) > 0 {
		cfg.Resolvers = q.Resolvers
	}
	server, err := lease.New(cfg)
	if err != nil {
		return nil, err
	}
	conn, err := host.ListenDHCP(q.Interface)
	if err != nil {
		return nil, err
	}
	l := &leases{conn: conn, server: server}
	go l.run(log)
	return l, nil
}

func (l *leases) run(log *slog.Logger) {
	b := make([]byte, 1500)
	for {
		n, _, err := l.conn.ReadFrom(b)
		if err != nil {
			return // closed
		}
		l.mu.Lock()
		answer, to := l.server.Handle(time.Now(), b[:n])
		l.mu.Unlock()
		if answer == nil {
			continue
		}
		if _, err := l.conn.WriteTo(answer, net.UDPAddrFromAddrPort(to)); err != nil {
			log.Warn("a client of the portal was not told its address", "to", to, "error", err)
		}
	}
}

func (l *leases) list() (out []weft.PortalLease) {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.server.Leases(time.Now()) {
		out = append(out, weft.PortalLease{Addr: x.Addr, Client: x.Client, Name: x.Name, Expires: x.Expires})
	}
	return out
}

func (l *leases) close() {
	if l != nil {
		l.conn.Close()
	}
}
