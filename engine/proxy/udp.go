package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft/engine/splice"
)

// maxDestinations is how many destinations one UDP association has at a time; a further one takes the place
// of the one that was silent the longest.
const maxDestinations = 64

// udpBuffer holds the longest UDP datagram.
const udpBuffer = 1 << 16

// An association carries datagrams between a client's socket and destinations for as long as the TCP
// connection that asked for it lasts (RFC 1928 section 7). In front of each datagram to and from the client
// is
//
//	| 0 (2) | fragment (1) | target |
//
// Fragments are dropped, as the RFC allows.
type association struct {
	p   *Proxy
	c   *net.UDPConn
	ip  netip.Addr // where the client is
	ctx context.Context
	wg  sync.WaitGroup

	mu     sync.Mutex
	client netip.AddrPort // who sent first, or whom the request named
	flows  map[target]*flow
	closed bool
}

type flow struct {
	c    net.Conn
	used time.Time
}

// associate serves UDP ASSOCIATE.
func (p *Proxy) associate(c *client, from target, answer func(reply, netip.AddrPort) error) {
	local := addrPort(c.LocalAddr())
	sock, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Addr(), 0)))
	if err != nil {
		p.cfg.Logger.Warn("the proxy cannot open a UDP socket", "error", err)
		answer(replyFailure, netip.AddrPort{})
		return
	}
	ctx, cancel := context.WithCancel(p.ctx)
	a := &association{
		p: p, c: sock, ctx: ctx, flows: make(map[target]*flow),
		ip: addrPort(c.RemoteAddr()).Addr().Unmap(),
	}
	if from.port != 0 {
		a.client = netip.AddrPortFrom(a.ip, from.port)
	}
	defer a.close()
	defer cancel()
	if err := answer(replySucceeded, addrPort(sock.LocalAddr())); err != nil {
		return
	}
	c.SetDeadline(time.Time{})
	a.wg.Go(a.receive)
	io.Copy(io.Discard, c) // nothing more is said; its end ends the association
}

func (a *association) close() {
	a.c.Close()
	a.mu.Lock()
	a.closed = true
	for _, f := range a.flows {
		f.c.Close()
	}
	a.mu.Unlock()
	a.wg.Wait()
}

// receive takes datagrams from the client. A destination that has to be looked up and dialled holds up the
// next datagram: for an overlay name that is a moment.
func (a *association) receive() {
	for b := make([]byte, udpBuffer); ; {
		n, from, err := a.c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		to, payload, err := parseDatagram(b[:n])
		if err != nil || !a.from(from) {
			continue
		}
		f, err := a.flow(to)
		if err != nil {
			a.p.cfg.Logger.Debug("a SOCKS destination was not reached", "host", to.host, "port", to.port, "error", err)
			continue
		}
		f.c.Write(payload) // lost is lost
	}
}

// from reports whether datagrams from there are the client's.
func (a *association) from(addr netip.AddrPort) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.client.IsValid() && addr.Addr() == a.ip {
		a.client = addr
	}
	return a.client == addr
}

// parseDatagram takes a datagram of the client's apart.
func parseDatagram(b []byte) (target, []byte, error) {
	if len(b) < 3 || b[2] != 0 {
		return target{}, nil, errSOCKS
	}
	r := bytes.NewReader(b[3:])
	to, err := readTarget(r)
	return to, b[len(b)-r.Len():], err
}

// flow finds or opens the way to a destination.
func (a *association) flow(to target) (*flow, error) {
	now := time.Now()
	a.mu.Lock()
	if f := a.flows[to]; f != nil {
		f.used = now
		a.mu.Unlock()
		return f, nil
	}
	a.mu.Unlock()
	c, err := a.p.connect(a.ctx, "udp", to.host, to.port)
	if err != nil {
		return nil, err
	}
	f := &flow{c: c, used: now}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		c.Close()
		return nil, net.ErrClosed
	}
	if len(a.flows) >= maxDestinations {
		var oldest target
		for t, g := range a.flows {
			if o := a.flows[oldest]; o == nil || g.used.Before(o.used) {
				oldest = t
			}
		}
		a.flows[oldest].c.Close()
		delete(a.flows, oldest)
	}
	a.flows[to] = f
	a.wg.Go(func() { a.answer(to, f) })
	return f, nil
}

// answer takes datagrams from a destination to the client, until there are none for splice.IdleUDP either way.
func (a *association) answer(to target, f *flow) {
	defer func() {
		f.c.Close()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.flows[to] == f {
			delete(a.flows, to)
		}
	}()
	b := make([]byte, udpBuffer)
	head := appendAddr([]byte{0, 0, 0}, addrPort(f.c.RemoteAddr()))
	copy(b, head)
	for {
		f.c.SetReadDeadline(time.Now().Add(splice.IdleUDP))
		n, err := f.c.Read(b[len(head):])
		a.mu.Lock()
		silent := time.Since(f.used)
		client := a.client
		if err == nil {
			f.used = time.Now()
		}
		a.mu.Unlock()
		if err != nil {
			if timedOut(err) && silent < splice.IdleUDP {
				continue
			}
			return
		}
		a.c.WriteToUDPAddrPort(b[:len(head)+n], client)
	}
}
