package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"weft/host"
	"weft/relay"
	"weft/stream"
	"weft/stun"
)

const (
	// headTimeout bounds the head of an HTTP request; what is upgraded has limits of its own.
	headTimeout = 10 * time.Second
	// stopTimeout bounds the wait for connections when the server ends.
	stopTimeout = 3 * time.Second

	certFile    = "tls.crt"
	certKeyFile = "tls.key"
)

// A front is what a server or relay shows the network: one TCP port, one UDP port of both families, and a second
// UDP port where STUN alone is answered, so that a NAT's behaviour towards two ports of one address can be told.
type front struct {
	tcp         net.Listener
	udp         []relay.Port
	certificate tls.Certificate
	fingerprint []byte
}

// udpSockets is over how many sockets of a port and family a relay spreads its senders: one for every two cores, since
// as much work as forwarding is the kernel's, which it does on others; and no more than eight, which forward what
// memory can take.
func udpSockets() int { return min(max(1, runtime.NumCPU()/2), 8) }

// listenFront opens the ports.
func listenFront(tcpAddr, udpAddr string) (*front, error) {
	f := &front{}
	var err error
	if f.tcp, err = net.Listen("tcp", tcpAddr); err != nil {
		return nil, portProblem("TCP", tcpAddr, "--listen", err)
	}
	for _, network := range []string{"udp4", "udp6"} {
		addr, err := net.ResolveUDPAddr(network, udpAddr)
		if err != nil {
			continue // an address of the other family
		}
		if len(f.udp) > 0 && addr.Port == 0 {
			addr.Port = int(f.udpPort())
		}
		conns, err := host.UDPListen(network, addr.String(), udpSockets())
		if err != nil {
			if len(f.udp) > 0 && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EACCES) { // a machine without IPv6
				continue
			}
			f.close()
			return nil, portProblem("UDP", udpAddr, "--stun", err)
		}
		f.udp = append(f.udp, relay.Port{Main: conns})
	}
	if len(f.udp) == 0 {
		f.close()
		return nil, usagef("--stun: %q is no address: give [host]:port", udpAddr)
	}
	f.listenAlternate()
	return f, nil
}

// listenAlternate opens the second UDP port: the next one, or any where another program has that. It must be the
// same of both families. Without it clients find out less; that is all.
func (f *front) listenAlternate() {
	wanted := []int{int(f.udpPort()) + 1, 0, 0, 0}
	if wanted[0] > 65535 {
		wanted = wanted[1:]
	}
	for _, port := range wanted {
		var opened []*net.UDPConn
		for _, p := range f.udp {
			addr := *p.Main[0].LocalAddr().(*net.UDPAddr)
			addr.Port = port
			network := "udp6"
			if addr.IP.To4() != nil {
				network = "udp4"
			}
			c, err := net.ListenUDP(network, &addr)
			if err != nil {
				break
			}
			opened = append(opened, c)
			port = c.LocalAddr().(*net.UDPAddr).Port
		}
		if len(opened) == len(f.udp) {
			for i, c := range opened {
				f.udp[i].Alternate = c
			}
			return
		}
		for _, c := range opened {
			c.Close()
		}
	}
}

func portProblem(proto, addr, flag string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s port %s is in use by another program: stop that one, or choose another with %s", proto, addr, flag)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("no permission to open %s port %s: run as root, give the binary CAP_NET_BIND_SERVICE, or choose a port above 1023 with %s", proto, addr, flag)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%s port %s cannot be opened, for this machine does not have that address: choose one that it has, or none, with %s", proto, addr, flag)
	}
	var bad *net.AddrError
	if errors.As(err, &bad) {
		return usagef("%s: %q is no address: give [host]:port", flag, addr)
	}
	return fmt.Errorf("%s port %s cannot be opened: %w", proto, addr, err)
}

func (f *front) tcpPort() uint16 { return uint16(f.tcp.Addr().(*net.TCPAddr).Port) }
func (f *front) udpPort() uint16 { return uint16(f.udp[0].Main[0].LocalAddr().(*net.UDPAddr).Port) }

// alternatePort is the second UDP port, 0 if there is none.
func (f *front) alternatePort() uint16 {
	if c := f.udp[0].Alternate; c != nil {
		return uint16(c.LocalAddr().(*net.UDPAddr).Port)
	}
	return 0
}

// tell logs which ports are served.
func (f *front) tell(log *slog.Logger, role, at, udp, version string) {
	log.Info(role+" is up", "url", at, "tcp", f.tcp.Addr().String(), "udp", udp, "udp_alternate", f.alternatePort(), "version", version)
	switch wanted, got := f.udpPort()+1, f.alternatePort(); {
	case got == 0:
		log.Warn("no second UDP port could be opened: what NATs do is found out less well")
	case got != wanted:
		log.Info("the UDP port behind that of STUN is in use by another program, and another was taken: let it through the firewall",
			"in_use", wanted, "taken", got)
	}
}

func (f *front) close() {
	if f.tcp != nil {
		f.tcp.Close()
	}
	for _, p := range f.udp {
		for _, c := range p.Main {
			c.Close()
		}
		if p.Alternate != nil {
			p.Alternate.Close()
		}
	}
}

// certify reads or makes the certificate in a directory.
func (f *front) certify(dir, at string) error {
	u, err := url.Parse(at)
	if err != nil {
		return err
	}
	f.certificate, f.fingerprint, err = stream.LoadOrCreateCertificate(
		filepath.Join(dir, certFile), filepath.Join(dir, certKeyFile), []string{u.Hostname()})
	return err
}

// serve serves both ports until ctx ends.
func (f *front) serve(ctx context.Context, h http.Handler, rel *relay.Server, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	responder := &stun.Responder{Software: "weft"}
	if f.alternatePort() != 0 {
		responder.Ports = [2]uint16{f.udpPort(), f.alternatePort()}
	}
	ended := make(chan error, 2)
	go func() { ended <- rel.ServeUDP(ctx, f.udp, responder.Respond) }()
	web := &http.Server{
		Handler: tellPanics(h, log), ReadHeaderTimeout: headTimeout,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // what strangers send is no news
	}
	go func() {
		ended <- web.Serve(stream.Listener(f.tcp, &tls.Config{Certificates: []tls.Certificate{f.certificate}}))
	}()
	var err error
	select {
	case <-ctx.Done():
	case err = <-ended:
	}
	host.NotifyStopping()
	stopCtx, stop := context.WithTimeout(context.Background(), stopTimeout)
	defer stop()
	web.Shutdown(stopCtx)
	rel.Close()
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
