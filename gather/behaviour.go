package gather

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"weft/stun"
)

// Behaviour runs RFC 5780's tests against the servers, all of one address family, from a fresh socket. It
// returns when there is nothing left to learn, some seconds at most, or when ctx ends: then with what is known.
// Local are the machine's addresses, by which the absence of a NAT is known.
func Behaviour(ctx context.Context, servers []netip.AddrPort, local []netip.Addr) (stun.Report, error) {
	if len(servers) == 0 {
		return stun.Report{}, errors.New("no STUN server of this address family is known")
	}
	network := "udp4"
	if servers[0].Addr().Is6() {
		network = "udp6"
	}
	conn, err := net.ListenUDP(network, nil)
	if err != nil {
		return stun.Report{}, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	port := uint16(conn.LocalAddr().(*net.UDPAddr).Port)
	var own []netip.AddrPort
	for _, a := range local {
		own = append(own, netip.AddrPortFrom(a, port))
	}
	d := stun.NewDiscovery(time.Now(), stun.DiscoveryConfig{Servers: servers, Local: own, Filtering: true})
	buf := make([]byte, 1500)
	for {
		packet, to, next, done := d.Poll(time.Now())
		if done || ctx.Err() != nil {
			return d.Report(), nil
		}
		if packet != nil {
			conn.WriteToUDPAddrPort(packet, to) // lost is lost: the discovery asks again
			continue
		}
		conn.SetReadDeadline(next)
		if ctx.Err() != nil {
			continue
		}
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err != nil:
			return d.Report(), err
		default:
			d.Handle(time.Now(), buf[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		}
	}
}

// RTT asks one STUN server from a fresh socket how far it is.
func RTT(ctx context.Context, server netip.AddrPort) (time.Duration, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	t := stun.NewTransaction(time.Now(), server, stun.TransactionConfig{RTO: stunRTO, Rc: stunTries, Rm: stunTries})
	buf := make([]byte, 1500)
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
