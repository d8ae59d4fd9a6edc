package api

// The role that each call requires, and the only place that defines it.

import (
	"os"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Role of a caller; each has the rights of those before it.
type Role int

// Roles.
const (
	NoRole Role = iota
	View
	Operate
	Admin
)

func (r Role) String() string { return [...]string{"none", "view", "operate", "admin"}[r] }

type rule struct {
	needs Role
	// It leaves a line in the audit log.
	changes bool
}

// rules by procedure; one without a rule is not served.
var rules = map[string]rule{
	controllerv1.Controller_GetState_FullMethodName:         {needs: View},
	controllerv1.Controller_GetBackend_FullMethodName:       {needs: View},
	controllerv1.Controller_GetConfigHistory_FullMethodName: {needs: View},
	controllerv1.Controller_GetFleet_FullMethodName:         {needs: View},
	controllerv1.Controller_GetCounters_FullMethodName:      {needs: View},
	controllerv1.Controller_GetConnections_FullMethodName:   {needs: View},
	controllerv1.Controller_GetDropSamples_FullMethodName:   {needs: View},
	controllerv1.Controller_WatchEvents_FullMethodName:      {needs: View},
	controllerv1.Controller_WatchRates_FullMethodName:       {needs: View},
	// A config may say more than all who look should know.
	controllerv1.Controller_GetConfig_FullMethodName:     {needs: Operate},
	controllerv1.Controller_PlanConfig_FullMethodName:    {needs: Operate},
	controllerv1.Controller_Reload_FullMethodName:        {needs: Operate, changes: true},
	controllerv1.Controller_DrainBackend_FullMethodName:  {needs: Operate, changes: true},
	controllerv1.Controller_DrainService_FullMethodName:  {needs: Operate, changes: true},
	controllerv1.Controller_DrainMachine_FullMethodName:  {needs: Operate, changes: true},
	controllerv1.Controller_ReplaceConfig_FullMethodName: {needs: Admin, changes: true},
	controllerv1.Controller_ApplyConfig_FullMethodName:   {needs: Admin, changes: true},
	controllerv1.Controller_EndCanary_FullMethodName:     {needs: Admin, changes: true},
	controllerv1.Controller_Restart_FullMethodName:       {needs: Admin, changes: true},

	healthv1.Health_Check_FullMethodName: {needs: View},
	healthv1.Health_List_FullMethodName:  {needs: View},
	healthv1.Health_Watch_FullMethodName: {needs: View},

	reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName:      {needs: View},
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: {needs: View},
}

// permit returns why a caller may not call, with the cure.
func permit(caller Caller, procedure string) error {
	needs := rules[procedure].needs
	switch {
	case caller.Role >= needs:
		return nil
	case caller.invalid != nil:
		return status.Errorf(codes.PermissionDenied, "the certificate of %s is not good (any more): %v", caller.Name, caller.invalid)
	case caller.Certificate != "" && caller.Role == NoRole:
		return status.Errorf(codes.PermissionDenied, "the certificate of %s has no role here: give one of its names (%s) under api.roles in the config", caller.Name, caller.names())
	case caller.Certificate != "":
		return status.Errorf(codes.PermissionDenied, "the certificate of %s has the role %s, and this needs %s: api.roles in the config says who has which", caller.Name, caller.Role, needs)
	case caller.UID == nil:
		return status.Error(codes.PermissionDenied, "the kernel does not say who the client is")
	case caller.Role == View:
		return status.Error(codes.PermissionDenied, "this socket is for looking only: changes go to controller.sock, which takes group "+OperateGroup)
	}
	return status.Errorf(codes.PermissionDenied, "configs are applied and rolled back by root, not by user %s: use sudo", caller.Name)
}

// ofUser is the role of a user at a socket: root and the user that this process
// runs as are admins where operators are, as they can replace the config's file.
func ofUser(uid uint32, socket Role) Role {
	if socket == Operate && (uid == 0 || uid == uint32(os.Geteuid())) {
		return Admin
	}
	return socket
}
