package bench

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"weft/host"
	"weft/key"
	"weft/node"
)

// PlainMTU is what wireguard-go gives its interface (device.DefaultMTU): what a user who picks it gets.
const PlainMTU = device.DefaultMTU

// PlainConfig is one end of a tunnel of upstream wireguard-go and nothing else.
type PlainConfig struct {
	Interface string
	Port      uint16
	Key       key.NodePrivate
	Peer      key.NodePublic
	Endpoint  netip.AddrPort // of the peer; zero waits for it
	Addr      netip.Addr     // of this end, inside
	PeerAddr  netip.Addr
	MTU       int
	Profiles  string // path of a unix socket that serves profiles as a daemon's local API does; "": none
}

// Plain runs one end of a plain wireguard-go tunnel until ctx ends. It says "ready" in a line on out.
func Plain(ctx context.Context, cfg PlainConfig, out io.Writer) error {
	t, err := tun.CreateTUN(cfg.Interface, cfg.MTU)
	if err != nil {
		return err
	}
	dev := device.NewDevice(t, conn.NewDefaultBind(), device.NewLogger(device.LogLevelError, "plain: "))
	defer dev.Close()
	private, peer := cfg.Key.RevealBytes(), cfg.Peer.Bytes()
	text := fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nallowed_ip=%s\n",
		hex.EncodeToString(private[:]), cfg.Port, hex.EncodeToString(peer[:]), netip.PrefixFrom(cfg.PeerAddr, cfg.PeerAddr.BitLen()))
	if cfg.Endpoint.IsValid() {
		text += "endpoint=" + cfg.Endpoint.String() + "\n"
	}
	if err := dev.IpcSet(text); err != nil {
		return err
	}
	if err := dev.Up(); err != nil {
		return err
	}
	one := func(a netip.Addr) []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())} }
	if err := host.ConfigureLink(cfg.Interface, one(cfg.Addr), one(cfg.PeerAddr), cfg.MTU); err != nil {
		return err
	}
	if cfg.Profiles != "" {
		stop, err := serveProfiles(cfg.Profiles)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Fprintln(out, "ready")
	<-ctx.Done()
	return nil
}

// serveProfiles serves profiles of this process for node.Client, to root alone.
func serveProfiles(socket string) (stop func() error, err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/profile/{kind}", node.ServeProfile)
	srv := &http.Server{Handler: mux}
	go srv.Serve(l) // until it is closed
	return srv.Close, nil
}

// ReadPlainKeys reads this end's private key and the peer's public key, a line each.
func ReadPlainKeys(r io.Reader) (own key.NodePrivate, peer key.NodePublic, err error) {
	s := bufio.NewScanner(r)
	var lines []string
	for len(lines) < 2 && s.Scan() {
		lines = append(lines, s.Text())
	}
	if len(lines) < 2 {
		return own, peer, fmt.Errorf("two lines are wanted, a private key and the peer's public key")
	}
	if own, err = key.ParsePrivate[key.Node](lines[0]); err != nil {
		return own, peer, err
	}
	peer, err = key.ParsePublic[key.Node](lines[1])
	return own, peer, err
}
