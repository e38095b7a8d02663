(* Waits.v - launches that wait cannot deadlock.

   A CTA is a list of steps that it still has to do, each of a stage; a step of stage s may be done
   when no CTA has a step left of a stage that s waits for. Two things can wait:

     a CTA for other CTAs of its launch (grid_sync, a counter): then the waits between stages have a
       rank, a CTA does its stages in ascending rank, and all CTAs are resident. That they are is a
       hypothesis here; the host sees to it by a cooperative launch, which the driver refuses when
       the CTAs do not fit, and core/jit reads from the schedule (`cooperative`).
     a launch for the one before it (wait_previous in every kernel): CTAs start in the order of the
       launches, and wait for earlier ones only; then any number of places is enough, even one.
*)

Require Import List Arith Bool Lia.
Import ListNotations.

Definition state := list (list nat).
Definition finished (s : state) : Prop := forall steps, In steps s -> steps = [].
Definition left_over (s : state) : nat := fold_right (fun steps sum => length steps + sum) 0 s.

Section Waits.
  Variable waits : nat -> nat -> bool. (* stage s waits for stage s' *)

  (* CTA number i does its next step. *)
  Inductive does (resident : state -> nat -> Prop) : state -> state -> Prop :=
    | does_step : forall before stage steps after,
        resident (before ++ (stage :: steps) :: after) (length before) ->
        (forall other stage', In other (before ++ (stage :: steps) :: after) -> In stage' other ->
           waits stage stage' = false) ->
        does resident (before ++ (stage :: steps) :: after) (before ++ steps :: after).

  Lemma does_less : forall resident s s', does resident s s' -> left_over s = S (left_over s').
  Proof.
    intros resident s s' step. destruct step as [before stage steps after _ _].
    induction before as [| first rest same]; simpl; [reflexivity |]. lia.
  Qed.

  Lemma does_from : forall resident s s', does resident s s' ->
    exists before stage steps after, s = before ++ (stage :: steps) :: after /\
      resident s (length before) /\
      forall other stage', In other s -> In stage' other -> waits stage stage' = false.
  Proof.
    intros resident s s' step. destruct step as [before stage steps after place free].
    exists before, stage, steps, after. auto.
  Qed.

  Fixpoint ascends (steps : list nat) : Prop :=
    match steps with
    | [] => True
    | stage :: rest => (forall later, In later rest -> stage <= later) /\ ascends rest
    end.

  Lemma least_stage : forall s, ~ finished s -> exists before stage steps after,
    s = before ++ (stage :: steps) :: after /\
    forall steps' stage' rest', In steps' s -> steps' = stage' :: rest' -> stage <= stage'.
  Proof.
    induction s as [| steps rest induction]; intro open.
    - exfalso. apply open. intros steps [].
    - assert (decided : finished rest \/ ~ finished rest).
      { clear. induction rest as [| [| stage steps] rest [yes | no]].
        - left. intros steps [].
        - left. intros steps [<- | inside]; auto.
        - right. intro all. apply no. intros steps inside. apply all. right. exact inside.
        - right. intro all. discriminate (all (stage :: steps)). left. reflexivity.
        - right. intro all. apply no. intros steps' inside. apply all. right. exact inside. }
      destruct decided as [done | open_rest].
      + destruct steps as [| stage steps].
        * exfalso. apply open. intros steps [<- | inside]; auto.
        * exists [], stage, steps, rest. split; [reflexivity |].
          intros steps' stage' rest' [<- | inside] same.
          -- injection same as <- _. lia.
          -- rewrite (done steps' inside) in same. discriminate.
      + destruct (induction open_rest) as [before [stage [after_steps [after [split_rest least]]]]].
        destruct steps as [| own steps].
        * exists ([] :: before), stage, after_steps, after.
          split; [rewrite split_rest; reflexivity |].
          intros steps' stage' rest' [<- | inside] same; [discriminate |]. eauto.
        * destruct (le_lt_dec own stage) as [first | later].
          -- exists [], own, steps, rest. split; [reflexivity |].
             intros steps' stage' rest' [<- | inside] same; [injection same as <- _; lia |].
             specialize (least steps' stage' rest' inside same). lia.
          -- exists ((own :: steps) :: before), stage, after_steps, after.
             split; [rewrite split_rest; reflexivity |].
             intros steps' stage' rest' [<- | inside] same; [injection same as <- _; lia |]. eauto.
  Qed.

  (* Law waits_stratified: where a stage waits only for stages of lower rank, every CTA does its
     stages in ascending rank and all CTAs are resident, some CTA can always go on until all are
     done; as every step is done once, every order of steps comes to the end.
     Mirrors: mlp_m16_sched, tail_m16_sched. *)
  Theorem waits_stratified :
    (forall stage stage', waits stage stage' = true -> stage' < stage) ->
    forall s, (forall steps, In steps s -> ascends steps) -> ~ finished s ->
    exists s', does (fun _ _ => True) s s' /\ left_over s = S (left_over s').
  Proof.
    intros ranked s sorted open.
    destruct (least_stage s open) as [before [stage [steps [after [split_s least]]]]].
    assert (step : does (fun _ _ => True) s (before ++ steps :: after)).
    { rewrite split_s. apply does_step; [exact I |]. rewrite <- split_s.
      intros other stage' inside is_left.
      destruct (waits stage stage') eqn:waiting; [| reflexivity]. exfalso.
      apply ranked in waiting.
      destruct other as [| first rest]; [exact is_left |].
      specialize (least (first :: rest) first rest inside eq_refl).
      specialize (sorted (first :: rest) inside). simpl in sorted. destruct sorted as [low _].
      destruct is_left as [<- | later]; [lia |]. specialize (low stage' later). lia. }
    exists (before ++ steps :: after). split; [exact step | exact (does_less _ _ _ step)].
  Qed.

  (* CTAs get places in their order; a CTA has one when fewer than `places` before it have steps
     left. *)
  Definition unfinished (s : state) : nat :=
    length (filter (fun steps => negb (length steps =? 0)) s).
  Definition has_place (places : nat) (s : state) (cta : nat) : Prop :=
    unfinished (firstn cta s) < places.

  Lemma first_unfinished : forall s, ~ finished s -> exists before stage steps after,
    s = before ++ (stage :: steps) :: after /\ finished before.
  Proof.
    induction s as [| [| stage steps] rest induction]; intro open.
    - exfalso. apply open. intros steps [].
    - destruct induction as [before [stage [steps [after [split_rest done]]]]].
      { intro all. apply open. intros steps [<- | inside]; auto. }
      exists ([] :: before), stage, steps, after. split; [rewrite split_rest; reflexivity |].
      intros steps' [<- | inside]; auto.
    - exists [], stage, steps, rest. split; [reflexivity | intros steps' []].
  Qed.

  (* Law waits_in_order: where CTAs start in order and wait only for earlier ones, as a launch waits
     for the launch before it, some CTA can always go on, whatever the number of places for CTAs.
     Mirrors: prefill_nosync. *)
  Theorem waits_in_order : forall places s, 1 <= places -> ~ finished s ->
    (forall before stage steps after, s = before ++ (stage :: steps) :: after ->
       forall other stage', In other ((stage :: steps) :: after) -> In stage' other ->
       waits stage stage' = false) ->
    exists s', does (has_place places) s s' /\ left_over s = S (left_over s').
  Proof.
    intros places s some open earlier.
    destruct (first_unfinished s open) as [before [stage [steps [after [split_s done]]]]].
    assert (step : does (has_place places) s (before ++ steps :: after)).
    { rewrite split_s. apply does_step.
      - unfold has_place. rewrite firstn_app, firstn_all, Nat.sub_diag. simpl. rewrite app_nil_r.
        assert (none : unfinished before = 0).
        { clear - done. induction before as [| first rest none]; [reflexivity |].
          unfold unfinished in *. simpl. rewrite (done first (or_introl eq_refl)). simpl.
          apply none. intros steps inside. apply done. right. exact inside. }
        lia.
      - intros other stage' inside is_left. apply in_app_or in inside.
        destruct inside as [inside | inside].
        + rewrite (done other inside) in is_left. destruct is_left.
        + apply (earlier before stage steps after split_s other stage' inside is_left). }
    exists (before ++ steps :: after). split; [exact step | exact (does_less _ _ _ step)].
  Qed.
End Waits.

(* ---- use *)

Definition barrier (stage stage' : nat) : bool := stage' <? stage.

Example waits_stratified_used := waits_stratified barrier
  ltac:(intros stage stage' below; apply Nat.ltb_lt in below; exact below)
  [[0; 1; 2]; [0; 2]] ltac:(intros steps [<- | [<- | []]]; simpl; intuition lia)
  ltac:(intro all; discriminate (all [0; 1; 2] (or_introl eq_refl))).

(* Three launches of one CTA each, every one waiting for those before it. *)
Example waits_in_order_used : exists s', does barrier (has_place 1) [[0]; [1]; [2]] s'.
Proof.
  exists [[]; [1]; [2]]. apply (does_step barrier (has_place 1) [] 0 [] [[1]; [2]]).
  - unfold has_place, unfinished. simpl. lia.
  - intros other stage' _ _. apply Nat.ltb_ge. lia.
Qed.

(* A cycle of waits stops both. *)
Example ranks_needed : forall s',
  ~ does (fun a b => negb (a =? b)) (fun _ _ => True) [[0]; [1]] s'.
Proof.
  intros s' step.
  destruct (does_from _ _ _ _ step) as [before [stage [steps [after [_ [_ free]]]]]].
  pose proof (free [0] 0 (or_introl eq_refl) (or_introl eq_refl)) as of_zero.
  pose proof (free [1] 1 (or_intror (or_introl eq_refl)) (or_introl eq_refl)) as of_one.
  apply negb_false_iff, Nat.eqb_eq in of_zero. apply negb_false_iff, Nat.eqb_eq in of_one. lia.
Qed.

(* A barrier of two CTAs with a place for one: the first waits for the second, which has none. *)
Example residency_needed : forall s', ~ does barrier (has_place 1) [[1]; [0; 1]] s'.
Proof.
  intros s' step.
  destruct (does_from _ _ _ _ step) as [before [stage [steps [after [same [place free]]]]]].
  destruct before as [| first before].
  - injection same as <- _ _.
    specialize (free [0; 1] 0 (or_intror (or_introl eq_refl)) (or_introl eq_refl)).
    discriminate free.
  - destruct before as [| second before].
    + unfold has_place, unfinished in place. simpl in same, place.
      injection same as <- _ _ _. simpl in place. lia.
    + injection same as _ _ same. destruct before; discriminate same.
Qed.

(* What a schedule exports of its waits: each stage's rank, the pairs (stage, stage that it waits
   for), and whether the launch is cooperative. *)
Definition waits_decided (ranks : list nat) (edges : list (nat * nat)) (cooperative : bool)
  : bool :=
  cooperative && forallb (fun edge => nth (snd edge) ranks 0 <? nth (fst edge) ranks 0) edges.
Definition waits_of (ranks : list nat) (edges : list (nat * nat)) (rank rank' : nat) : bool :=
  existsb (fun edge => (nth (fst edge) ranks 0 =? rank) && (nth (snd edge) ranks 0 =? rank')) edges.

Lemma waits_instance : forall ranks edges cooperative,
  waits_decided ranks edges cooperative = true ->
  cooperative = true /\
  forall s, (forall steps, In steps s -> ascends steps) -> ~ finished s ->
  exists s', does (waits_of ranks edges) (fun _ _ => True) s s' /\ left_over s = S (left_over s').
Proof.
  intros ranks edges cooperative decided. unfold waits_decided in decided.
  apply andb_true_iff in decided. destruct decided as [resident ranked].
  split; [exact resident |]. apply waits_stratified.
  intros rank rank' waiting. unfold waits_of in waiting. apply existsb_exists in waiting.
  destruct waiting as [edge [inside same]]. rewrite andb_true_iff, !Nat.eqb_eq in same.
  destruct same as [<- <-]. rewrite forallb_forall in ranked. apply Nat.ltb_lt, ranked, inside.
Qed.
