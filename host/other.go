//go:build !linux

package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"github.com/mdlayher/ndp"

	"weft"
)

// Resolver is a wiring that is in place.
type Resolver struct{}

func (*Resolver) Refresh(context.Context) error { return ErrNotSupported }
func (*Resolver) Mode() string                  { return "" }
func (*Resolver) Upstreams() []netip.AddrPort   { return nil }
func (*Resolver) Close() error                  { return ErrNotSupported }

func Interfaces() ([]Interface, error)                        { return nil, ErrNotSupported }
func WatchLinks(context.Context) (<-chan struct{}, error)     { return nil, ErrNotSupported }
func WatchCarriers(context.Context) (<-chan Carrier, error)   { return nil, ErrNotSupported }
func DefaultRoute() (ifname string, ok bool)                  { return "", false }
func LinkExists(string) (bool, error)                         { return false, ErrNotSupported }
func CheckTUN() error                                         { return ErrNotSupported }
func PeerCredentials(*net.UnixConn) (Credentials, error)      { return Credentials{}, ErrNotSupported }
func FreeBind(string, string, syscall.RawConn) error          { return ErrNotSupported }
func LockFile(string) (unlock func() error, err error)        { return nil, ErrNotSupported }
func RepairResolver(string) error                             { return ErrNotSupported }
func Left(string, string) ([]string, error)                   { return nil, nil }
func SetUDPBuffers(DatagramConn, int) (rx, tx int, err error) { return 0, 0, ErrNotSupported }

func ConfigureLink(string, []netip.Prefix, []netip.Prefix, int) error { return ErrNotSupported }

func NameServers() []netip.AddrPort                    { return nil }
func ForwardWithin(string, []netip.Prefix, bool) error { return ErrNotSupported }
func StopForwarding(string) error                      { return ErrNotSupported }
func SetRouter(Router) error                           { return ErrNotSupported }
func StopRouter(string) error                          { return nil }
func ClearOverlayRoutes(string) error                  { return nil }

func SetOverlayRoutes(OverlayRoutes) ([]netip.Prefix, error) { return nil, ErrNotSupported }

// An Announcement is an overlay that others know of.
type Announcement struct{}

func (*Announcement) Update(Overlay) error { return ErrNotSupported }
func (*Announcement) Close()               {}

func Announce(Overlay) (*Announcement, error) { return nil, ErrNotSupported }
func Overlays(string) []Overlay               { return nil }
func Namesake(string, string) (Overlay, bool) { return Overlay{}, false }

func ConfigureResolver(context.Context, ResolverConfig) (*Resolver, error) {
	return nil, ErrNotSupported
}

func OpenPortalRemote(PortalRemote) error { return ErrNotSupported }
func OpenPortalLocal(PortalLocal) error   { return ErrNotSupported }
func ClosePortal(string, string) error    { return nil }
func PortalTrafficOf(string) (weft.PortalTraffic, error) {
	return weft.PortalTraffic{}, ErrNotSupported
}
func PublicAddrs(string) (v4, v6 PublicAddr, _ error) { return v4, v6, ErrNotSupported }
func ListenDHCP(string) (net.PacketConn, error)       { return nil, ErrNotSupported }
func ListenDHCP6(string) (net.PacketConn, error)      { return nil, ErrNotSupported }

// An Advertiser is this machine as the router of an interface.
type Advertiser struct{}

// ErrIPv6Off is of an interface without IPv6.
var ErrIPv6Off = errors.New("IPv6 is switched off there")

func ListenSolicitations(string) (*Advertiser, net.HardwareAddr, error) {
	return nil, nil, ErrNotSupported
}
func (*Advertiser) Solicited() error                         { return ErrNotSupported }
func (*Advertiser) Advertise(*ndp.RouterAdvertisement) error { return ErrNotSupported }
func (*Advertiser) Close() error                             { return nil }
