package machine

import (
	"context"

	"github.com/spf13/cobra"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// BackendNames are those that the controller knows; none, if it does not say.
func BackendNames(ctx context.Context, m Machine) (names []string) {
	_ = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		state, err := client.GetState(ctx, &controllerv1.GetStateRequest{})
		for _, backend := range state.GetBackends() {
			names = append(names, backend.Name)
		}
		return err
	})
	return names
}

// ServiceNames are those that the controller knows; none, if it does not say.
func ServiceNames(ctx context.Context, m Machine) (names []string) {
	_ = m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		state, err := client.GetState(ctx, &controllerv1.GetStateRequest{WithoutBackends: true})
		for _, service := range state.GetServices() {
			names = append(names, service.Name)
		}
		return err
	})
	return names
}

// CompleteNames for a shell: the one argument, or a flag's value.
func CompleteNames(m *Machine, names func(context.Context, Machine) []string) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(command.Context(), *m), cobra.ShellCompDirectiveNoFileComp
	}
}
