package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

// systemd-resolved's D-Bus interface: org.freedesktop.resolve1(5).
const (
	resolvedName    = "org.freedesktop.resolve1"
	resolvedObject  = "/org/freedesktop/resolve1"
	resolvedManager = resolvedName + ".Manager."

	dbusUnknownMethod = "org.freedesktop.DBus.Error.UnknownMethod"
	resolvedNoLink    = resolvedName + ".NoSuchLink"
)

type resolvedServer struct {
	Family  int32
	Address []byte
}

type resolvedDomain struct {
	Name string
	// RoutingOnly: questions for names below it go to this link, but short
	// names are not completed with it.
	RoutingOnly bool
}

// ownedByResolved reports whether questions of this machine's programs go to
// systemd-resolved: resolv.conf is its stub or says so, or it is resolved's list of
// servers and the C library asks resolved past resolv.conf. That list without the
// latter is read by programs that then ask the servers themselves; routing a domain
// inside resolved would not reach them.
func (e *resolverEnv) ownedByResolved(conf *confFile) bool {
	if conf.Kind == kindLink {
		switch linkTarget(e.root, conf.Target) {
		case resolvedStub, "/usr/lib/systemd/resolv.conf", "/lib/systemd/resolv.conf":
			return true
		case resolvedUplinks:
			return e.nssAsksResolved()
		}
	}
	return onlyStub(nameservers(conf.Content))
}

// nssAsksResolved looks for nss-resolve in nsswitch.conf(5).
func (e *resolverEnv) nssAsksResolved() bool {
	text, err := os.ReadFile(e.path("/etc/nsswitch.conf"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if sources, ok := strings.CutPrefix(strings.TrimSpace(line), "hosts:"); ok {
			return slices.Contains(strings.Fields(sources), "resolve")
		}
	}
	return false
}

// wireResolved routes our domains, and nothing else unless all is asked for, to our server by the overlay's
// link. The link's default route for names is switched off before it gets a server,
// so that no question for anything else comes to us even for a moment.
func (e *resolverEnv) wireResolved(ctx context.Context, s *savedResolver, record func() error) error {
	index, ok, err := e.linkIndex(s.Interface)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("there is no interface %s", s.Interface)
	}
	conn, err := e.bus(ctx)
	if err != nil {
		return fmt.Errorf("connect to the system bus: %w", err)
	}
	defer conn.Close()
	if err := record(); err != nil {
		return err
	}
	var domains []resolvedDomain
	for _, d := range s.Search {
		domains = append(domains, resolvedDomain{Name: d})
	}
	for _, d := range s.Domains {
		if !slices.Contains(s.Search, d) {
			domains = append(domains, resolvedDomain{Name: d, RoutingOnly: true})
		}
	}
	if s.All {
		domains = append(domains, resolvedDomain{Name: ".", RoutingOnly: true})
	}
	manager := conn.Object(resolvedName, resolvedObject)
	for _, call := range []struct {
		method   string
		optional bool // missing in old versions, which behave that way unasked
		arg      any
	}{
		{"SetLinkDefaultRoute", true, s.All},
		{"SetLinkDomains", false, domains},
		// Our zone is not signed, and our server does not speak TLS: where the
		// machine insists on either, this link must not.
		{"SetLinkDNSSEC", true, "no"},
		{"SetLinkDNSOverTLS", true, "no"},
		{"SetLinkDNS", false, []resolvedServer{serverOf(s.Server)}},
	} {
		err := manager.CallWithContext(ctx, resolvedManager+call.method, 0, int32(index), call.arg).Err
		if call.optional && isDBusError(err, dbusUnknownMethod) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s of systemd-resolved for %s: %w", call.method, s.Interface, err)
		}
	}
	return nil
}

// unwireResolved takes the link's settings back. They end with the link anyway.
func (e *resolverEnv) unwireResolved(ctx context.Context, s *savedResolver) error {
	index, ok, err := e.linkIndex(s.Interface)
	if err != nil || !ok {
		return err
	}
	conn, err := e.bus(ctx)
	if err != nil {
		return fmt.Errorf("connect to the system bus: %w", err)
	}
	defer conn.Close()
	err = conn.Object(resolvedName, resolvedObject).
		CallWithContext(ctx, resolvedManager+"RevertLink", 0, int32(index)).Err
	if err != nil && !isDBusError(err, resolvedNoLink) {
		return fmt.Errorf("RevertLink of systemd-resolved for %s: %w", s.Interface, err)
	}
	return nil
}

func serverOf(a netip.Addr) resolvedServer {
	if a = a.Unmap(); a.Is4() {
		return resolvedServer{Family: unix.AF_INET, Address: a.AsSlice()}
	}
	return resolvedServer{Family: unix.AF_INET6, Address: a.AsSlice()}
}

func isDBusError(err error, name string) bool {
	e, ok := errors.AsType[dbus.Error](err)
	return ok && e.Name == name
}

// linkIndex is the index of the interface of this name.
func linkIndex(name string) (index int, ok bool, err error) {
	exists, err := LinkExists(name)
	if err != nil || !exists {
		return 0, false, err
	}
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, false, err
	}
	return i.Index, true, nil
}
