package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"weft"
	"weft/engine"
	"weft/engine/netstack"
	"weft/engine/proxy"
	"weft/host"
)

// ProxyConfig is the way into the network in userspace mode.
type ProxyConfig struct {
	Listen   string // host:port on loopback; port 0 is any
	Password string // of the user "weft"; "" is a random one, kept in the state directory
}

// passwordFile holds the proxy's password, in the state directory, mode 0600.
const passwordFile = "proxy-password"

// A device is where packets enter and leave the overlay: a network interface, or a network stack of our own
// behind a proxy.
type device struct {
	TUN   engine.Device // the engine's: it closes it
	Name  string        // of the interface; "" in userspace mode
	mtu   int           // bytes
	stack *netstack.Netstack
	proxy *proxy.Proxy
	// announced has the other networks of this machine know of this one; nil in userspace mode.
	announced *host.Announcement
}

// checkDevice finds out at the start what would keep the device from ever being made: no permission for an
// interface, or a port of the proxy that somebody else has.
func checkDevice(cfg Config) error {
	if !cfg.Userspace {
		return host.CheckTUN()
	}
	if cfg.Proxy.Listen == "" {
		return nil
	}
	p, err := proxy.Listen(cfg.Proxy.Listen, proxy.Config{
		Dial: func(context.Context, string, netip.AddrPort) (net.Conn, error) {
			return nil, errors.New("the network is not up yet")
		},
		Overlay: func(netip.Addr) bool { return false },
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return fmt.Errorf("%w (--proxy)", err)
	}
	return p.Close()
}

// openDevice makes the device that the configuration asks for. Addresses come with configure.
func openDevice(cfg Config, m weft.NetworkMap, mtu int, log *slog.Logger) (*device, error) {
	if !cfg.Userspace {
		announced, err := host.Announce(overlay(cfg.TUN, m))
		if errors.Is(err, host.ErrOverlap) {
			return nil, err
		}
		if err != nil {
			log.Warn("other networks of this machine do not know of this one", "error", err)
		}
		t, err := engine.OpenTUN(cfg.TUN, mtu)
		if err != nil {
			if announced != nil {
				announced.Close()
			}
			return nil, err
		}
		return &device{TUN: t, Name: t.Name(), mtu: mtu, announced: announced}, nil
	}
	t, stack, err := netstack.New(m.Self.Addrs, mtu, log)
	if err != nil {
		return nil, err
	}
	return &device{TUN: t, stack: stack, mtu: mtu}, nil
}

// overlay is what other networks of this machine have to know of one.
func overlay(iface string, m weft.NetworkMap) host.Overlay {
	return host.Overlay{Interface: iface, Domain: m.Domain, Ranges: m.Ranges, Server: m.Service}
}

// configure gives the device the addresses and routes of a map.
func (d *device) configure(m weft.NetworkMap) error {
	if d.stack != nil {
		return d.stack.SetAddrs(m.Self.Addrs)
	}
	addrs := hostPrefixes(m.Self.Addrs)
	if d.announced != nil {
		if err := d.announced.Update(overlay(d.Name, m)); errors.Is(err, host.ErrOverlap) {
			return err
		}
	}
	if m.Service.IsValid() {
		addrs = append(addrs, netip.PrefixFrom(m.Service, m.Service.BitLen()))
	}
	err := host.ConfigureLink(d.Name, addrs, m.Ranges, d.mtu)
	if err != nil && !errors.Is(err, host.ErrIPv6Disabled) {
		return fmt.Errorf("the interface %s could not be set up: %w", d.Name, err)
	}
	return err
}

// serve opens the proxy of userspace mode; elsewhere it does nothing.
func (d *device) serve(cfg Config, ranges []netip.Prefix, resolve func(string) []netip.Addr, log *slog.Logger) error {
	if d.stack == nil {
		return nil
	}
	password := cfg.Proxy.Password
	if password == "" {
		var err error
		if password, err = keptPassword(filepath.Join(cfg.StateDir, passwordFile)); err != nil {
			return err
		}
	}
	p, err := proxy.Listen(cfg.Proxy.Listen, proxy.Config{
		Dial: d.stack.DialContext, Resolve: resolve, Password: password, Logger: log,
		Overlay: func(a netip.Addr) bool {
			return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
		},
	})
	if err != nil {
		return err
	}
	d.proxy = p
	return nil
}

// keptPassword reads the proxy's password, or makes one.
func keptPassword(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(b)) != "" {
		return strings.TrimSpace(string(b)), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the proxy's password cannot be read: %w", err)
	}
	password := proxy.NewPassword()
	if err := host.WriteFileAtomic(path, []byte(password+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("the proxy's password cannot be kept: %w", err)
	}
	return password, nil
}

// proxyAddr is where the proxy listens, "" without one.
func (d *device) proxyAddr() string {
	if d.proxy == nil {
		return ""
	}
	return d.proxy.Addr().String()
}

// close ends what the engine does not.
func (d *device) close() {
	if d.proxy != nil {
		d.proxy.Close()
	}
	if d.announced != nil {
		d.announced.Close()
	}
}
